#!/usr/bin/env python3
"""Checks the layering of offgraph/<room>/: who includes what, and that the build names every file.

Usage: check_includes.py [ROOT]

ROOT is the project's folder. Prints one line per violation, "file:line: what, and what would be right", and exits with
1 if there is any. The tables below mirror the table of rooms in docs/DESIGN.md; that they agree is checked as well.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Room:
    depends: tuple = ()  # rooms of the column "may depend on" in docs/DESIGN.md
    through: tuple = ()  # rooms whose types stand in the headers of those, and so may be named as well


ROOMS = {
    "cache": Room(),
    "kernels": Room(),
    "bytes": Room(depends=("cache", "kernels")),
    "program": Room(depends=("bytes",), through=("cache", "kernels")),
    "pte": Room(),
    # An Executor takes a KvStore, and that a CacheConfig.
    "delegate": Room(depends=("program",), through=("bytes", "cache")),
    # A TokenRunner hides KvStore: this room knows no MLX.
    "llm": Room(depends=("program", "pte", "cache")),
    # Puts everything together.
    "apps": Room(depends=("llm",), through=("cache", "kernels", "bytes", "program", "pte", "delegate")),
}

# Headers of a room that every room may include.
SHARED_HEADERS = ("offgraph/cache/error.h",)


@dataclass(frozen=True)
class Library:
    name: str  # as docs/DESIGN.md spells it
    headers: str  # a pattern that the whole name of a header matches
    rooms: tuple  # who may include it
    in_headers: bool = True  # False: only in sources and -inl.h files


ALL_ROOMS = tuple(ROOMS)
LIBRARIES = (
    Library("the standard library", r"[a-z_0-9]+|std(bool|def|int|io|lib)\.h|(assert|errno|math|string)\.h", ALL_ROOMS),
    Library(
        "POSIX",
        r"(dirent|dlfcn|fcntl|poll|pthread|sched|signal|termios|time|unistd)\.h|sys/[a-z_]+\.h",
        tuple(room for room in ROOMS if room != "cache"),
    ),
    Library("Highway", r"hwy/.*", ("kernels",), in_headers=False),
    Library("intrinsics", r"(\w*intrin|arm_\w+|cpuid)\.h", ("kernels",), in_headers=False),
    Library("MLX", r"mlx/.*", ("bytes", "program")),
    Library("FlatBuffers", r"flatbuffers/.*|(.*/)?\w+_generated\.h", ("program", "pte")),
    Library("ExecuTorch", r"executorch/.*", ("delegate",)),
    Library("nlohmann-json", r"nlohmann/.*", ("delegate", "llm", "apps")),
    Library("PCRE2", r"pcre2\.h", ("llm",)),
    Library("utf8proc", r"utf8proc\.h", ("llm",)),
    Library("CLI11", r"CLI/.*", ("apps",)),
    Library("libedit", r"histedit\.h|editline/.*", ("apps",)),
)
# For files that no user links: tests with their helpers, and benchmarks.
TEST_HEADERS = r"(gtest|gmock)/.*"
TEST_FILES = r".*_test(_util)?\.(h|cc)"
BENCHMARK_HEADERS = r"benchmark/.*"
BENCHMARK_FILES = r".*_bench(mark)?(_util)?\.(h|cc)"

INCLUDE = re.compile(r"^\s*#\s*include\b\s*(?P<what>.*)$")
SPELLED = re.compile(r'^(?:"(?P<quoted>[^"]+)"|<(?P<angled>[^>]+)>)')
SIMD_TYPE = re.compile(
    r"\b(__m(64|128|256|512)[a-z]*|(u?int|float|bfloat|poly)\d+x\d+(x\d+)?_t|hn::\w+|hwy::\w+)\b|vector_size"
)


def visible_rooms(room):
    """The rooms that `room` may include beside itself."""
    return ROOMS[room].depends + ROOMS[room].through


def is_per_target(name):
    """Whether a header holds code that is compiled once per instruction set (Highway's convention)."""
    return name.endswith("-inl.h")


def is_plain_header(name):
    return name.endswith(".h") and not is_per_target(name)


def check_room_include(room, file_name, header):
    """A header of the project: "offgraph/<room>/..."."""
    parts = header.split("/")
    if parts[0] != "offgraph" or len(parts) < 3:
        return f'"{header}" is not spelled "offgraph/<room>/<file>"; another library\'s header is spelled <{header}>'
    if parts[1] not in ROOMS:
        return f'"{header}" is in no room; the rooms are {", ".join(ROOMS)}'
    if is_per_target(header) and (parts[1] != room or is_plain_header(file_name)):
        return f'"{header}" is compiled per instruction set: only sources and -inl.h files of {parts[1]} include it'
    if parts[1] == room or header in SHARED_HEADERS or parts[1] in visible_rooms(room):
        return None
    visible = ", ".join(sorted(visible_rooms(room))) or "no other room"
    return f'"{header}": {room} may not include {parts[1]}; it may include {visible}, and {SHARED_HEADERS[0]}'


def check_library_include(room, file_name, header):
    """A header of another library, or one that the build generates with it."""
    for files, headers, kind in (
        (TEST_FILES, TEST_HEADERS, "tests (x_test.cc, x_test_util.h)"),
        (BENCHMARK_FILES, BENCHMARK_HEADERS, "benchmarks (x_benchmark.cc)"),
    ):
        if re.fullmatch(headers, header):
            return None if re.fullmatch(files, file_name) else f"<{header}> is for {kind} only"
    for library in LIBRARIES:
        if re.fullmatch(library.headers, header):
            if room not in library.rooms:
                return f"<{header}>: {room} may not include {library.name}; it belongs in {', '.join(library.rooms)}"
            if is_plain_header(file_name) and not library.in_headers:
                return f"<{header}>: {library.name} stays out of headers; include it in a source or an -inl.h file"
            return None
    return f"<{header}> is of no library in the table of {Path(__file__).name}"


def check_include(room, file_name, quoted, angled):
    """What is wrong with one #include, or None."""
    if angled:
        if angled.startswith("offgraph/"):
            return f'<{angled}> is a header of the project: it is spelled "{angled}"'
        return check_library_include(room, file_name, angled)
    problem = check_room_include(room, file_name, quoted)
    if problem is None and quoted.endswith("_generated.h"):
        return check_library_include(room, file_name, quoted)
    return problem


def check_includes(room, path, shown, included):
    """Every #include of one file, and SIMD types in headers. Adds what it includes to `included`."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        include = INCLUDE.match(line)
        if include:
            spelled = SPELLED.match(include["what"])
            if not spelled:
                yield f"{shown}:{number}: #include {include['what']} names no file"
                continue
            quoted, angled = spelled["quoted"], spelled["angled"]
            included.add(quoted or angled)
            problem = check_include(room, path.name, quoted, angled)
            if problem:
                yield f"{shown}:{number}: {problem}"
        elif is_plain_header(path.name):
            simd = SIMD_TYPE.search(line.split("//")[0])
            if simd:
                yield f"{shown}:{number}: {simd[0]}: no SIMD type in a header; keep it in a source or an -inl.h file"


def is_named(path, room_folder):
    """Whether a CMakeLists.txt between the file and its room names the file, by its path from there."""
    for folder in path.parents:
        listing = folder / "CMakeLists.txt"
        if listing.is_file():
            text = re.sub(r"#.*", "", listing.read_text(encoding="utf-8"))
            name = re.escape(path.relative_to(folder).as_posix())
            if re.search(rf"(?<![\w.-]){name}(?![\w.-])", text):
                return True
        if folder == room_folder:
            return False
    return False


def check_design(root):
    """The table of rooms in docs/DESIGN.md against the tables here."""
    design = root / "docs" / "DESIGN.md"
    if not design.is_file():
        yield "docs/DESIGN.md: is not there, and the rooms of this check mirror its table"
        return
    rows = re.findall(r"^\| `(\w+)/?` \|.*\| ([^|]+) \|$", design.read_text(encoding="utf-8"), re.MULTILINE)
    found = {room: {word.strip() for word in last.split(",")} for room, last in rows}
    for room in sorted(set(found) ^ set(ROOMS)):
        where = "docs/DESIGN.md" if room in found else Path(__file__).name
        yield f"docs/DESIGN.md: the room {room} is in the table of {where} alone"
    for room in sorted(set(found) & set(ROOMS)):
        libraries = {library.name for library in LIBRARIES if room in library.rooms}
        rooms = {word for word in found[room] if word not in libraries}
        if rooms != set(ROOMS[room].depends):
            yield (
                f"docs/DESIGN.md: {room} may depend on {', '.join(sorted(rooms)) or 'no room'}; "
                f"{Path(__file__).name} says {', '.join(sorted(ROOMS[room].depends)) or 'no room'}"
            )


def check_tree(root):
    """All violations of the project at `root`, one line each."""
    root = Path(root)
    yield from check_design(root)
    top = root / "offgraph"
    included = set()
    headers = []
    for folder in sorted(path for path in top.iterdir() if path.is_dir()):
        room = folder.name
        if room not in ROOMS:
            yield f"offgraph/{room}: a folder that is no room; the rooms are {', '.join(ROOMS)}"
            continue
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            shown = path.relative_to(root).as_posix()
            if path.name == "CMakeLists.txt" or path.suffix == ".md":
                continue
            if path.suffix in (".h", ".cc"):
                yield from check_includes(room, path, shown, included)
            if path.suffix == ".h":
                headers.append(shown)
            elif not is_named(path, folder):
                yield f"{shown}: no CMakeLists.txt of the room names it; every source is named, or it is not there"
    yield from (f"{shown}: no file of any room includes it" for shown in headers if shown not in included)


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    violations = list(check_tree(root))
    for violation in violations:
        print(violation)
    print(f"{len(violations)} violations of the layering")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
