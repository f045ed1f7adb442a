/* What LLVM's MLIR leaves to its runner: copies one memref of any strides into another. */
#include <stdint.h>
#include <string.h>

typedef struct {
  char *allocated, *aligned;
  int64_t offset;
  int64_t sizes_and_strides[];
} Ranked;

typedef struct {
  int64_t rank;
  Ranked *memref;
} Unranked;

static void copy(int64_t bytes, int64_t rank, const int64_t *size, char *from,
                 const int64_t *step_from, char *to, const int64_t *step_to) {
  if (rank == 0) {
    memcpy(to, from, bytes);
    return;
  }
  for (int64_t i = 0; i < *size; i++)
    copy(bytes, rank - 1, size + 1, from + i * *step_from * bytes, step_from + 1,
         to + i * *step_to * bytes, step_to + 1);
}

void memrefCopy(int64_t bytes, Unranked *from, Unranked *to) {
  Ranked *source = from->memref, *target = to->memref;
  int64_t rank = from->rank;
  copy(bytes, rank, source->sizes_and_strides, source->aligned + source->offset * bytes,
       source->sizes_and_strides + rank, target->aligned + target->offset * bytes,
       target->sizes_and_strides + rank);
}
