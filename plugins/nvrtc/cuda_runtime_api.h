// Stands in for the CUDA runtime's header: NVRTC knows the runtime's types by itself.
#pragma once
