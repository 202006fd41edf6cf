# Installs the core for C++ users: headers, libkvcache.a, a CMake package and a pkg-config file.
# The wheel carries the same tree under kvcache/, so every path in it is relative to itself.
include(CMakePackageConfigHelpers)

set(KVCACHE_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/kvcache)

install(TARGETS kvcache_core EXPORT kvcacheTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(
  DIRECTORY include/kvcache
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING
  PATTERN "*.h")
install(
  EXPORT kvcacheTargets
  NAMESPACE kvcache::
  DESTINATION ${KVCACHE_CMAKE_DIR})

configure_package_config_file(cmake/kvcacheConfig.cmake.in kvcacheConfig.cmake
                              INSTALL_DESTINATION ${KVCACHE_CMAKE_DIR})
write_basic_package_version_file(kvcacheConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvcacheConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/kvcacheConfigVersion.cmake
        DESTINATION ${KVCACHE_CMAKE_DIR})

# pkg-config knows where the file lies (pcfiledir); the prefix is found from there.
file(RELATIVE_PATH KVCACHE_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
     ${CMAKE_INSTALL_PREFIX})
set(KVCACHE_DL_LIBS "")
if(CMAKE_DL_LIBS)
  set(KVCACHE_DL_LIBS " -l${CMAKE_DL_LIBS}")
endif()
configure_file(cmake/kvcache.pc.in kvcache.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvcache.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
