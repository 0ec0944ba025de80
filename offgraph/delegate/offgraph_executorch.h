/* The C interface of liboffgraph_executorch.so, the plugin that gives ExecuTorch's runtime its MLX backend on Linux.
 *
 * Loading the library registers "MLXBackend"; nothing has to be called for that. A method with an off-graph KV cache
 * (update_and_attend) also needs to be told how its cache is made: a delegate sees neither a program's constant
 * methods (get_windows and the like) nor what the user wants. Whoever loads the method says it first:
 *
 *     offgraph_define_cache("", "{\"capacity\": 4096, \"kv_dtype\": \"fp16\", \"windows\": 0}");
 *
 * Keys. A method that is loaded with the runtime spec cache_key = KEY takes the definition of that key. Methods that
 * are loaded with one key and have the same layers share one cache, as long as one of them lives and the definition
 * stays the same: prefill and decode of one model, for example. A method that is loaded without cache_key takes the
 * definition of the empty key, and has a cache of its own.
 *
 * Steps. A call whose first position is 0 starts over: the cache is cleared first. Every other call must go on where
 * the last one ended; a gap, or a position that is behind the length without a rewind, is refused. A call that fails,
 * for whatever reason, leaves the cache as it was; one at position 0 leaves it empty.
 *
 * Errors. Every function returns a negative number, or non-zero where it returns no number, when it fails, and
 * offgraph_error() then says why. Where a load or a call of ExecuTorch's fails in this backend, its log has the
 * message, and offgraph_error() on the same thread as well.
 *
 * Thread rule: all functions may be called from any thread. Those that touch a cache wait for its running step.
 */
#ifndef OFFGRAPH_DELEGATE_OFFGRAPH_EXECUTORCH_H_
#define OFFGRAPH_DELEGATE_OFFGRAPH_EXECUTORCH_H_

#include <stdint.h>

#if defined(__GNUC__)
#define OFFGRAPH_EXPORT __attribute__((visibility("default")))
#else
#define OFFGRAPH_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Says how the caches of methods are made that are loaded with cache_key = `key` from now on. Caches that exist stay
 * as they are. `json` is an object; a name that is not in this table is refused:
 *
 *   "capacity"          tokens that a sequence may hold; required
 *   "kv_dtype"          "fp32", "fp16", "bf16", or "same": K and V are stored as the model computes them; required
 *   "windows"           what the method get_windows of the program says: one number per cache, 0 for full attention;
 *                       or 0: full attention in all of them; required
 *   "initial_capacity"  rows that are taken at first, they double from there; default 256
 *   "sinks"             first tokens that stay visible for ever, in caches with a window; default 0
 *   "max_step"          the longest step that caches with a window admit, in tokens; default 512
 *   "rewind_reserve"    rewinds by up to so many tokens are exact in caches with a window; default 0
 */
OFFGRAPH_EXPORT int offgraph_define_cache(const char* key, const char* json);

/* The functions below take the key of a cache. The empty key is the cache of the method that was loaded last without
 * cache_key. It is an error if no method that is loaded has such a cache. */

/* Tokens in the cache, or -1. */
OFFGRAPH_EXPORT int64_t offgraph_cache_length(const char* key);

typedef struct offgraph_memory {
  int64_t in_use;   /* bytes of K and V of the tokens in the cache */
  int64_t reserved; /* bytes that the cache holds now */
  int64_t peak;     /* the most that it held */
} offgraph_memory;
OFFGRAPH_EXPORT int offgraph_cache_memory(const char* key, offgraph_memory* memory);

/* Forgets all tokens from position `length` on. Going on from there is exact, the same as if they had never been; it
 * is refused where a window has lost what the next token needs. */
OFFGRAPH_EXPORT int offgraph_cache_rewind(const char* key, int64_t length);

/* Rewinds to 0. The memory is kept for what follows. */
OFFGRAPH_EXPORT int offgraph_cache_clear(const char* key);

/* Gives the cache of the empty key a name, by which the functions above reach it also after other methods are loaded.
 * It is refused where that cache has another name, or another cache has this one.
 * For callers that cannot pass runtime specs, such as ExecuTorch's Python runtime. */
OFFGRAPH_EXPORT int offgraph_name_cache(const char* key);

/* Limits what one call of a method may take beside weights, mutable buffers and cache, for all methods of the process
 * and every call that begins from now on; a method that is loaded from now on is held to it with its mutable buffers
 * and what it computes once. 0, which is the default: no limit. The count is an upper bound, known before anything is
 * taken: a call that would pass the limit fails with ExecuTorch's MemoryAllocationFailed. For programs that nobody
 * vouches for. */
OFFGRAPH_EXPORT int offgraph_limit_step_memory(int64_t bytes);

/* What went wrong in the last call on this thread that failed; "" if none did. Valid until the next failure on this
 * thread, or offgraph_clear_error. */
OFFGRAPH_EXPORT const char* offgraph_error(void);

/* Makes offgraph_error() "" until the next failure on this thread: a caller of ExecuTorch tells a failure of this
 * backend from any other by it. */
OFFGRAPH_EXPORT void offgraph_clear_error(void);

#ifdef __cplusplus
}
#endif

#endif /* OFFGRAPH_DELEGATE_OFFGRAPH_EXECUTORCH_H_ */
