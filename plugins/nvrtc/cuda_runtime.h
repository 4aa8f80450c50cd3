// Stands in for the CUDA runtime's header: NVRTC knows the words of device code by itself.
#pragma once
