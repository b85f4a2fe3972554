# Run by cpack before it packs: what is in Debian packages only.
set(service "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/service")
message(STATUS "packing below ${CPACK_TEMPORARY_INSTALL_DIRECTORY}")
file(MAKE_DIRECTORY "${service}/etc/kopsd")
configure_file("${CPACK_KOPS_SETTINGS}" "${service}/etc/kopsd/kopsd.conf" COPYONLY)
