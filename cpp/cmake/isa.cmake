# kvcache_isa_sources(<target> <ISA> SOURCES ... FLAGS ...): one instruction set, one call.
function(kvcache_isa_sources target isa)
  cmake_parse_arguments(PARSE_ARGV 2 A "" "" "SOURCES;FLAGS")
  target_sources(${target} PRIVATE ${A_SOURCES})
  # GCC and clang fuse a*b+c under -mfma: rows would differ from scalar in the last bit.
  set_source_files_properties(${A_SOURCES} PROPERTIES COMPILE_OPTIONS
                                                      "${A_FLAGS};-ffp-contract=off")
  target_compile_definitions(${target} PRIVATE KVCACHE_HAVE_${isa}=1)
endfunction()
