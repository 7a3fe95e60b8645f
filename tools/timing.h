// Wall time of work on a device.
#pragma once

#include <functional>

namespace tapehead {

/// Seconds until `work` has returned and the default device is done with all that it was given.
double seconds_of(const std::function<void()>& work);

}  // namespace tapehead
