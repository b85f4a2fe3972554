# Debian packages, by `make package` or cpack: kopsd (the daemon, kopsctl, units, manual pages) and libkops-dev (the C
# client's library and headers). What the programs depend on is computed from their symbols.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kops)
set(CPACK_PACKAGE_VENDOR "the authors of kopsd")
set(CPACK_PACKAGE_CONTACT "the authors of kopsd <kopsd@localhost>")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/package)
set(KOPS_PACKAGE_VERSION ${PROJECT_VERSION} CACHE STRING "Version of the Debian packages")
set(CPACK_PACKAGE_VERSION ${KOPS_PACKAGE_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL service client)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_SERVICE_PACKAGE_NAME kopsd)
set(CPACK_DEBIAN_SERVICE_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_SERVICE_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers | adduser")
set(CPACK_DEBIAN_SERVICE_PACKAGE_RECOMMENDS "libopenblas0-pthread")
set(CPACK_COMPONENT_SERVICE_DESCRIPTION
    "\nAny process hands kopsd tensors by reference over a Unix socket; it runs compiled kernels on them.\nThe daemon, its command-line tool kopsctl, and the units that run it. NVIDIA's driver, cuBLASLt and NVRTC are\nloaded where they are there; without them everything runs on the host's processors.")
set(CPACK_DEBIAN_SERVICE_PACKAGE_CONTROL_EXTRA "${CMAKE_CURRENT_SOURCE_DIR}/debian/postinst"
    "${CMAKE_CURRENT_SOURCE_DIR}/debian/prerm" "${CMAKE_CURRENT_SOURCE_DIR}/debian/postrm"
    "${CMAKE_CURRENT_SOURCE_DIR}/debian/conffiles")

set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME libkops-dev)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SUGGESTS kopsd)
set(CPACK_COMPONENT_CLIENT_DESCRIPTION
    "C client of the kopsd kernel server\nThe library, its headers, and what CMake and pkg-config need to find them.")

# Settings belong into /etc in a package, and nowhere else: an installation by hand leaves an administrator's alone.
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_SOURCE_DIR}/debian/settings.cmake)
set(CPACK_KOPS_SETTINGS ${CMAKE_CURRENT_SOURCE_DIR}/kopsd.conf)
set(CPACK_KOPS_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_KOPS_CHANGELOG ${PROJECT_SOURCE_DIR}/CHANGELOG.md)
include(CPack)
