# Run by cpack before it packs: what is in Debian packages only.
set(root "${CPACK_TEMPORARY_INSTALL_DIRECTORY}")
file(MAKE_DIRECTORY "${root}/service/etc/kopsd")
configure_file("${CPACK_KOPS_SOURCE}/deploy/kopsd.conf" "${root}/service/etc/kopsd/kopsd.conf" COPYONLY)

string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(component ${CPACK_COMPONENTS_ALL})
    string(TOUPPER "${component}" upper)
    set(package "${CPACK_DEBIAN_${upper}_PACKAGE_NAME}")
    set(doc "${root}/${component}/usr/share/doc/${package}")
    configure_file("${CPACK_KOPS_SOURCE}/deploy/debian/copyright" "${doc}/copyright" COPYONLY)
    configure_file("${CPACK_KOPS_SOURCE}/CHANGELOG.md" "${doc}/changelog" COPYONLY)
    file(WRITE "${doc}/changelog.Debian"
        "kops (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium\n\n"
        "  * What changed is in changelog.gz.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
    set(overrides "${root}/${component}/usr/share/lintian/overrides/${package}")
    file(WRITE "${overrides}" "# Made for whoever has the source, not for Debian's archive.\n${package}: initial-upload-closes-no-bugs\n")
    if(CPACK_PACKAGE_CONTACT MATCHES "@localhost>")
        file(APPEND "${overrides}"
            "# Nobody has said who answers for it: DEBFULLNAME and DEBEMAIL were not set.\n"
            "${package}: bogus-mail-host\n${package}: bogus-mail-host-in-debian-changelog\n")
    endif()
    file(GLOB pages "${root}/${component}/usr/share/man/man*/*.[1-9]")
    execute_process(COMMAND gzip -9nf ${pages} "${doc}/changelog" "${doc}/changelog.Debian" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
