// Python.h for extensions that define an empty module, whose import then is what loads their library.
#pragma once
#include <cstddef>

struct PyObject;
struct PyMethodDef;
struct PyModuleDef_Base {
};
struct PyModuleDef {
    PyModuleDef_Base base;
    const char *name, *doc;
    long size;
    PyMethodDef *methods;
    void *slots, *traverse, *clear, *free;
};
#define PyModuleDef_HEAD_INIT                                                                                          \
    {                                                                                                                  \
    }
#define PyMODINIT_FUNC extern "C" PyObject *
// Nobody calls a function that makes a module: this package makes it.
inline PyObject *PyModule_Create(PyModuleDef *)
{
    return nullptr;
}
