// The same from C++: the header compiles there, and its functions link.
#include <kops/kops.h>

int main()
{
    kops_connect_options options = {};
    kops_tensor t = kops_vector(nullptr, KOPS_F32, 5);
    kops_attr a = kops_attr_float("alpha", 2.0);
    kops_error error;
    kops_client *client = nullptr;

    options.socket = "/nonexistent/kopsd.sock";
    if (kops_connect(&options, &client, &error) != KOPS_ERR_CONNECT_FAILED)
        return 1;
    return kops_tensor_count(&t) == 5 && a.value.real == 2.0 ? 0 : 2;
}
