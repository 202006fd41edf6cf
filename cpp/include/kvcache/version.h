// The one place the version is written; the wheel, CMake and pkg-config read it from here.
#pragma once

#define KVCACHE_VERSION "0.1.0"
