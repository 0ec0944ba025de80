/* Includes the plugin's public header as C, and calls into the library. */
#include <offgraph/delegate/offgraph_executorch.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  if (offgraph_define_cache("", "{\"capacity\": 64, \"kv_dtype\": \"fp16\", \"windows\": 0}") != 0) {
    fprintf(stderr, "%s\n", offgraph_error());
    return 1;
  }
  if (offgraph_define_cache("", "{\"capacity\": 64}") == 0) return 1;
  if (strstr(offgraph_error(), "kv_dtype is missing") == NULL) return 1;
  return offgraph_cache_length("") == -1 ? 0 : 1;
}
