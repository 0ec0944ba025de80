#include "offgraph/bytes/evaluation.h"

#include <mlx/device.h>
#include <mlx/event.h>
#include <mlx/scheduler.h>
#include <mlx/stream.h>

#include <system_error>
#include <thread>

namespace offgraph::bytes {

namespace mx = mlx::core;

void WaitForEvaluation() noexcept {
  for (const mx::Device& device : {mx::Device(mx::Device::cpu), mx::default_device()}) {
    // Waiting may be refused memory, which the work that is waited for gives back as it ends; or it reports what
    // failed, which is known.
    for (;;) {
      try {
        mx::synchronize(mx::default_stream(device));
        break;
      } catch (const std::system_error&) {
        break;  // the system grants the stream no thread: nothing runs on it
      } catch (...) {
        std::this_thread::yield();
      }
    }
  }
  // MLX counts the work that it queues, and holds evaluations back while the count is high. Work that it counted, and
  // was then refused memory for, stays counted: one day an evaluation would wait for ever. (Where others use MLX at
  // this moment, the count falls below what is true, and they are held back a little later.)
  while (mx::scheduler::n_active_tasks() > 0) {
    mx::scheduler::notify_task_completion(mx::default_stream(mx::Device::cpu));
  }
}

mx::array NewestComputed(const mx::array& array, int64_t updates) noexcept {
  const mx::array* newest = &array;
  for (; updates > 0 && newest->status() == mx::array::Status::unscheduled && !newest->inputs().empty(); --updates) {
    newest = &newest->inputs()[0];
  }
  if (newest->status() == mx::array::Status::evaluated) {
    // Its work is done. Its event may be one that nobody is left to signal.
    newest->attach_event({});
    newest->set_status(mx::array::Status::available);
  }
  return *newest;
}

}  // namespace offgraph::bytes
