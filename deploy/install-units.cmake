# Run by an installation: units with the paths of its prefix.
foreach(unit kopsd.socket kopsd.service kopsd@.socket kopsd@.service kopsd-devices.service kopsd-metrics.service
        kopsd-mps.service kopsd-cache.socket kopsd-cache@.service)
    file(READ "${kops_deploy}/${unit}" kops_text)
    foreach(program sbin/kopsd bin/kopsctl libexec/kopsd/)
        string(REPLACE "=/usr/${program}" "=${CMAKE_INSTALL_PREFIX}/${program}" kops_text "${kops_text}")
    endforeach()
    set(kops_unit "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/systemd/system/${unit}")
    message(STATUS "Installing: ${kops_unit}")
    file(WRITE "${kops_unit}" "${kops_text}")
    file(CHMOD "${kops_unit}" PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
    list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${CMAKE_INSTALL_PREFIX}/lib/systemd/system/${unit}")
endforeach()
