// What stands before MLX's own allocator.
//
// Where memory runs out, MLX's allocator for CPUs returns null, and MLX's ops then write through it. The definition of
// mlx::core::allocator::allocator() in mlx_allocator.cc takes the place of MLX's: it asks that one, and throws
// std::bad_alloc where it returns null, which ends the evaluation as any other exception does. The linker prefers it
// because programs, and the plugin, come before libmlx.so in the order in which symbols are looked up.
#pragma once

#include <cstddef>

namespace offgraph::bytes {

// For tests: `probe` is called before every allocation of MLX's, on whichever thread; what it throws, the allocation
// throws. Null: none.
void SetAllocationProbe(void (*probe)(size_t bytes));

}  // namespace offgraph::bytes
