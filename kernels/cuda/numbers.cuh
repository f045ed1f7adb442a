// Constants of both kernels, without the CUDA toolkit's headers.
#pragma once

constexpr float LN_2 = 0.6931471805599453f;
#define MINUS_INFINITY __int_as_float(0xff800000)
