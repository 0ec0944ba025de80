// llama.cpp, measured as offgraph is: a small program over the C interface of the library that llama-cpp-python brings.
// No Python in the measured process, so that neither its start nor its memory is held against llama.cpp.
//
//   llama_peer bench    MODEL THREADS CAPACITY PREFILL,... DEPTH,... DECODE REPS   the JSON of `offgraph bench --json`
//   llama_peer first    MODEL THREADS CAPACITY PROMPT                              prints the first token of the reply
//   llama_peer logits   MODEL THREADS TOKENS TEXT_FILE OUT.npy                     float32 [TOKENS, vocab], row i after
//   token i llama_peer quantize MODEL OUT.gguf Q4_0|Q4_1|Q8_0|F16|BF16                     also from a quantized MODEL
//
// K and V are stored in fp16. Everything that is not named here is llama.cpp's own default.
#include <errno.h>
#include <limits.h>
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kMaxFigures = 16, kMaxReps = 1000, kBatch = 2048, kLogitRows = 256 };

static void Fail(const char* what, const char* detail) {
  fprintf(stderr, "llama_peer: %s: %s\n", what, detail);
  exit(1);
}

static void* Allocate(size_t count, size_t size) {
  void* memory = calloc(count, size);
  if (memory == NULL) Fail("allocation", "out of memory");
  return memory;
}

static double Seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int ParseInt(const char* text, int low, int high) {
  char* end = NULL;
  errno = 0;
  const long value = strtol(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || value < low || value > high) Fail("not a number in range", text);
  return (int)value;
}

// "512,2048" to values[]; returns how many.
static int ParseList(const char* text, int low, int values[kMaxFigures]) {
  char* copy = strdup(text);
  int count = 0;
  for (char* part = strtok(copy, ","); part != NULL; part = strtok(NULL, ",")) {
    if (count == kMaxFigures) Fail("too many values", text);
    values[count++] = ParseInt(part, low, INT_MAX);
  }
  free(copy);
  return count;
}

static void DropLog(enum ggml_log_level level, const char* text, void* data) {
  (void)data;
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

struct Peer {
  struct llama_model* model;
  struct llama_context* context;
  llama_memory_t memory;
  const struct llama_vocab* vocab;
  int n_vocab;
  struct llama_batch batch;
};

static struct Peer Open(const char* path, const char* weights, int threads, int capacity) {
  llama_log_set(DropLog, NULL);
  llama_backend_init();
  struct Peer peer = {0};
  struct llama_model_params model_params = llama_model_default_params();
  if (strcmp(weights, "packed") != 0 && strcmp(weights, "plain") != 0) Fail("not packed or plain", weights);
  model_params.use_extra_bufts = strcmp(weights, "packed") == 0;
  peer.model = llama_model_load_from_file(path, model_params);
  if (peer.model == NULL) Fail("cannot load", path);
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = (uint32_t)capacity;
  params.n_batch = kBatch;
  params.n_threads = params.n_threads_batch = threads;
  params.type_k = params.type_v = GGML_TYPE_F16;
  peer.context = llama_init_from_model(peer.model, params);
  if (peer.context == NULL) Fail("cannot make a context", path);
  peer.memory = llama_get_memory(peer.context);
  peer.vocab = llama_model_get_vocab(peer.model);
  peer.n_vocab = llama_vocab_n_tokens(peer.vocab);
  peer.batch = llama_batch_init(kBatch, 0, 1);
  return peer;
}

// The same tokens in every run, the ones that offgraph takes; which ones they are makes no difference to the speed.
static llama_token TokenAt(const struct Peer* peer, int i) {
  return (llama_token)(((int64_t)i * 7919 + 11) % peer->n_vocab);
}

// Evaluates tokens [count] at positions from `first` on. Logits are wanted of the last one, or of all.
static void Evaluate(struct Peer* peer, const llama_token* tokens, int count, int first, bool all) {
  for (int done = 0; done < count;) {
    const int part = count - done < kBatch ? count - done : kBatch;
    for (int i = 0; i < part; ++i) {
      peer->batch.token[i] = tokens[done + i];
      peer->batch.pos[i] = first + done + i;
      peer->batch.n_seq_id[i] = 1;
      peer->batch.seq_id[i][0] = 0;
      peer->batch.logits[i] = all || done + i == count - 1;
    }
    peer->batch.n_tokens = part;
    if (llama_decode(peer->context, peer->batch) != 0) Fail("llama_decode", "failed");
    done += part;
  }
}

static llama_token BestToken(const struct Peer* peer) {
  const float* logits = llama_get_logits_ith(peer->context, -1);
  int best = 0;
  for (int i = 1; i < peer->n_vocab; ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return best;
}

static int CompareDoubles(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

static double Median(double* values, int count) {
  qsort(values, (size_t)count, sizeof(double), CompareDoubles);
  return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static long long PeakRss(void) {
  FILE* status = fopen("/proc/self/status", "r");
  if (status == NULL) Fail("/proc/self/status", strerror(errno));
  char line[256];
  long long kib = 0;
  while (fgets(line, sizeof line, status) != NULL) {
    if (sscanf(line, "VmHWM: %lld", &kib) == 1) break;
  }
  fclose(status);
  return kib * 1024;
}

static void Bench(char** argv) {
  const double start = Seconds();
  const int threads = ParseInt(argv[2], 1, 4096);
  struct Peer peer = Open(argv[0], argv[1], threads, ParseInt(argv[3], 1, INT_MAX));
  int prefill[kMaxFigures];
  int depth[kMaxFigures];
  const int prefills = ParseList(argv[4], 1, prefill);
  const int depths = ParseList(argv[5], 0, depth);
  const int decode = ParseInt(argv[6], 1, INT_MAX);
  const int reps = ParseInt(argv[7], 1, kMaxReps);
  int longest = kBatch;
  for (int i = 0; i < prefills; ++i) longest = prefill[i] > longest ? prefill[i] : longest;
  for (int i = 0; i < depths; ++i) longest = depth[i] > longest ? depth[i] : longest;
  llama_token* tokens = Allocate((size_t)longest + 1, sizeof *tokens);
  for (int i = 0; i <= longest; ++i) tokens[i] = TokenAt(&peer, i);

  // Pages of the file are read, and work buffers made, by the first step: it is part of the load.
  Evaluate(&peer, tokens, 1, 0, false);
  const double load_s = Seconds() - start;
  llama_memory_clear(peer.memory, false);
  Evaluate(&peer, tokens, 16, 0, false);

  double rates[kMaxReps];
  printf("{\"threads\": %d, \"load_s\": %.6f, \"prefill\": [", threads, load_s);
  for (int f = 0; f < prefills; ++f) {
    for (int rep = 0; rep < reps; ++rep) {
      llama_memory_clear(peer.memory, false);
      const double begin = Seconds();
      Evaluate(&peer, tokens, prefill[f], 0, false);
      rates[rep] = prefill[f] / (Seconds() - begin);
    }
    printf("%s{\"tokens\": %d, \"tokens_per_s\": %.3f}", f > 0 ? ", " : "", prefill[f], Median(rates, reps));
  }
  printf("], \"decode\": [");
  for (int f = 0; f < depths; ++f) {
    llama_memory_clear(peer.memory, false);
    if (depth[f] > 0) Evaluate(&peer, tokens, depth[f], 0, false);
    for (int rep = 0; rep < reps; ++rep) {
      llama_memory_seq_rm(peer.memory, 0, depth[f], -1);
      llama_token token = tokens[depth[f]];
      const double begin = Seconds();
      for (int i = 0; i < decode; ++i) {
        Evaluate(&peer, &token, 1, depth[f] + i, false);
        token = BestToken(&peer);
      }
      rates[rep] = decode / (Seconds() - begin);
    }
    printf("%s{\"depth\": %d, \"tokens_per_s\": %.3f}", f > 0 ? ", " : "", depth[f], Median(rates, reps));
  }
  printf("], \"peak_rss_bytes\": %lld}\n", PeakRss());
  free(tokens);
}

// The tokens of a text, with the special ones that the model's tokenizer adds. The caller frees them.
static llama_token* Tokenize(const struct Peer* peer, const char* text, size_t bytes, int* count) {
  llama_token* tokens = Allocate(bytes + 8, sizeof *tokens);
  *count = llama_tokenize(peer->vocab, text, (int32_t)bytes, tokens, (int32_t)bytes + 8, true, false);
  if (*count <= 0) Fail("llama_tokenize", "failed");
  return tokens;
}

static void First(char** argv) {
  struct Peer peer = Open(argv[0], argv[1], ParseInt(argv[2], 1, 4096), ParseInt(argv[3], 1, INT_MAX));
  int count = 0;
  llama_token* tokens = Tokenize(&peer, argv[4], strlen(argv[4]), &count);
  Evaluate(&peer, tokens, count, 0, false);
  char piece[256];
  const int length = llama_token_to_piece(peer.vocab, BestToken(&peer), piece, sizeof piece, 0, true);
  if (length < 0) Fail("llama_token_to_piece", "failed");
  fwrite(piece, 1, (size_t)length, stdout);
  fflush(stdout);
  free(tokens);
}

static char* ReadFile(const char* path, size_t* bytes) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) Fail(path, strerror(errno));
  fseek(file, 0, SEEK_END);
  const long size = ftell(file);
  if (size < 0 || size > INT_MAX - 8) Fail(path, "too long");
  rewind(file);
  char* text = Allocate((size_t)size + 1, 1);
  *bytes = fread(text, 1, (size_t)size, file);
  fclose(file);
  return text;
}

// The header of a float32 array in C order: magic, version 1.0, the length of the dictionary, which pads all to 128
// bytes.
static void WriteNpyHeader(FILE* out, int rows, int columns) {
  char dictionary[119];
  const int length = snprintf(dictionary, sizeof dictionary,
                              "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", rows, columns);
  memset(dictionary + length, ' ', sizeof dictionary - (size_t)length);
  dictionary[117] = '\n';
  fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, out);
  fwrite(dictionary, 1, 118, out);
}

static void Logits(char** argv) {
  const int wanted = ParseInt(argv[3], 1, INT_MAX);
  struct Peer peer = Open(argv[0], argv[1], ParseInt(argv[2], 1, 4096), wanted);
  size_t bytes = 0;
  char* text = ReadFile(argv[4], &bytes);
  int count = 0;
  llama_token* tokens = Tokenize(&peer, text, bytes, &count);
  if (count < wanted) Fail(argv[4], "has fewer tokens than asked for");
  FILE* out = fopen(argv[5], "wb");
  if (out == NULL) Fail(argv[5], strerror(errno));
  WriteNpyHeader(out, wanted, peer.n_vocab);
  for (int done = 0; done < wanted; done += kLogitRows) {
    const int part = wanted - done < kLogitRows ? wanted - done : kLogitRows;
    Evaluate(&peer, tokens + done, part, done, true);
    fwrite(llama_get_logits(peer.context), sizeof(float), (size_t)part * (size_t)peer.n_vocab, out);
  }
  if (ferror(out) || fclose(out) != 0) Fail(argv[5], "cannot be written");
  free(text);
  free(tokens);
}

static void Quantize(char** argv) {
  static const struct {
    const char* name;
    enum llama_ftype type;
  } kTypes[] = {{"Q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},
                {"Q4_1", LLAMA_FTYPE_MOSTLY_Q4_1},
                {"Q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
                {"F16", LLAMA_FTYPE_MOSTLY_F16},
                {"BF16", LLAMA_FTYPE_MOSTLY_BF16}};
  llama_log_set(DropLog, NULL);
  llama_backend_init();
  for (size_t i = 0; i < sizeof kTypes / sizeof kTypes[0]; ++i) {
    if (strcmp(argv[2], kTypes[i].name) != 0) continue;
    struct llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = kTypes[i].type;
    params.allow_requantize = true;
    if (llama_model_quantize(argv[0], argv[1], &params) != 0) Fail("llama_model_quantize failed for", argv[0]);
    return;
  }
  Fail("unknown type", argv[2]);
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    int arguments;
    void (*run)(char** argv);
  } kCommands[] = {{"bench", 8, Bench}, {"first", 5, First}, {"logits", 6, Logits}, {"quantize", 3, Quantize}};
  for (size_t i = 0; argc > 1 && i < sizeof kCommands / sizeof kCommands[0]; ++i) {
    if (strcmp(argv[1], kCommands[i].name) != 0 || argc != 2 + kCommands[i].arguments) continue;
    kCommands[i].run(argv + 2);
    return 0;
  }
  fprintf(stderr, "llama_peer: wrong usage, see the top of llama_peer.c\n");
  return 2;
}
