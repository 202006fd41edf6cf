# One call per instruction set; the file's flags reach no other file.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  kvcache_isa_sources(kvcache_core AVX2 SOURCES src/codec/rows_avx2.cc
                      FLAGS -O3 -mavx2 -mfma -mf16c -fno-trapping-math -fno-math-errno)
  kvcache_isa_sources(
    kvcache_core AVX512 SOURCES src/codec/rows_avx512.cc
    FLAGS -O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi -mavx2 -mfma -mf16c
          -mprefer-vector-width=512 -fno-trapping-math -fno-math-errno)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  kvcache_isa_sources(kvcache_core NEON SOURCES src/codec/rows_neon.cc
                      FLAGS -O3 -fno-trapping-math -fno-math-errno)
endif()

# Code built for one processor must never be what another one links to.
# Sanitizers add shared symbols of their own.
if(KVCACHE_TESTS AND NOT KVCACHE_SANITIZE)
  add_test(NAME CodecSymbols.FilesOfOneInstructionSetShareNoSymbol
           COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DARCHIVE=$<TARGET_FILE:kvcache_core> -P
                   ${PROJECT_SOURCE_DIR}/tests/cpp/codec_symbols.cmake)
endif()
