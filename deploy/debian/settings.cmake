# Run by cpack before it packs: what is in Debian packages only.
set(service "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/service")
set(client "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/client")
file(MAKE_DIRECTORY "${service}/etc/kopsd")
configure_file("${CPACK_KOPS_SETTINGS}" "${service}/etc/kopsd/kopsd.conf" COPYONLY)
configure_file("${CPACK_KOPS_LICENSE}" "${service}/usr/share/doc/kopsd/copyright" COPYONLY)
configure_file("${CPACK_KOPS_LICENSE}" "${client}/usr/share/doc/libkops-dev/copyright" COPYONLY)
# Pages and changelogs are compressed there, as Debian's are.
file(GLOB pages "${service}/usr/share/man/man*/*.[1-9]")
configure_file("${CPACK_KOPS_CHANGELOG}" "${service}/usr/share/doc/kopsd/changelog" COPYONLY)
configure_file("${CPACK_KOPS_CHANGELOG}" "${client}/usr/share/doc/libkops-dev/changelog" COPYONLY)
execute_process(COMMAND gzip -9nf ${pages} "${service}/usr/share/doc/kopsd/changelog"
    "${client}/usr/share/doc/libkops-dev/changelog" COMMAND_ERROR_IS_FATAL ANY)
