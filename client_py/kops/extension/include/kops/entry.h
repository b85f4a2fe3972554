// Names of a kernel's instantiations, as a CUDA compiler takes them. The rewritten source calls these in each kernel.
#pragma once
#include <initializer_list>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>

namespace kops
{
// A type's name: what both compilers write behind "T = ".
template <class T> std::string kops_name_of()
{
    const std::string text = __PRETTY_FUNCTION__;
    const size_t start = text.find("T = ") + 4;
    const size_t end = text.find("; std::string", start); // g++ adds what std::string is
    return text.substr(start, (end < text.size() ? end : text.rfind(']')) - start);
}

template <class T> std::string kops_name_of(T value)
{
    if constexpr (std::is_same_v<T, bool>)
        return value ? "true" : "false";
    else if constexpr (std::is_enum_v<T>)
        return "(" + kops_name_of<T>() + ")" + std::to_string((long long)value);
    else if constexpr (std::is_integral_v<T>)
        return std::to_string(value);
    else
        return "?" + kops_name_of<T>(); // a pointer or a structure: no text stands for it
}

// "space::kernel<float, 4>", of the kernel's __PRETTY_FUNCTION__ and its template arguments. The text stays.
inline const char *kops_entry(const char *function, std::initializer_list<std::string> arguments)
{
    std::string name = function;
    size_t end = std::string::npos; // of the name: the parameters' '(', or the '<' of a specialization
    for (size_t i = 0, depth = 0; i < name.size() && end == std::string::npos; i++) {
        const bool anonymous = name.compare(i, 10, "(anonymous") == 0;
        if (anonymous)
            i = name.find(')', i);
        else if (name[i] == '(' || (name[i] == '<' && depth == 0))
            end = i;
    }
    name = name.substr(0, end);
    size_t start = 0;
    for (size_t i = 0; i < name.size(); i++) // behind the result's type, which may have a scope that has a blank
        if (name[i] == ' ' && name.compare(i + 1, 10, "namespace)") != 0)
            start = i + 1;
    name = name.substr(start);
    const char *separator = "<";
    for (const std::string &argument : arguments) {
        name += separator + argument;
        separator = ", ";
    }
    if (arguments.size())
        name += ">";
    static std::set<std::string> names;
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    return names.insert(name).first->c_str();
}
} // namespace kops
