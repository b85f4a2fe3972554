// Tensor: a handle with sizes, strides, type and device at hand. Everything else is a call of torch.
#pragma once
#include <kops/call.h>

#include <mutex>

namespace at
{
template <class T> struct DefaultPtrTraits {
    typedef T *PtrType;
};
template <class T> struct RestrictPtrTraits {
    typedef T *__restrict__ PtrType;
};

// A tensor's elements by index on the host. One index of several gives the accessor of the remaining dimensions.
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t> class TensorAccessor
{
  public:
    typedef typename Traits<T>::PtrType PtrType;
    TensorAccessor(PtrType data, const I *sizes, const I *strides) : data_(data), sizes_(sizes), strides_(strides)
    {
    }
    IntArrayRef sizes() const
    {
        return {sizes_, N};
    }
    IntArrayRef strides() const
    {
        return {strides_, N};
    }
    I size(I dim) const
    {
        return sizes_[dim];
    }
    I stride(I dim) const
    {
        return strides_[dim];
    }
    PtrType data() const
    {
        return data_;
    }
    decltype(auto) operator[](I index) const
    {
        if constexpr (N == 1)
            return static_cast<T &>(data_[strides_[0] * index]);
        else
            return TensorAccessor<T, N - 1, Traits, I>(data_ + strides_[0] * index, sizes_ + 1, strides_ + 1);
    }

  private:
    PtrType data_;
    const I *sizes_, *strides_;
};

// The accessor that kernels take as an argument; its layout is the one of torch's on the device.
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
class GenericPackedTensorAccessor
{
  public:
    typedef typename Traits<T>::PtrType PtrType;
    GenericPackedTensorAccessor(PtrType data, const int64_t *sizes, const int64_t *strides) : data_(data)
    {
        std::copy(sizes, sizes + N, sizes_);
        std::copy(strides, strides + N, strides_);
    }
    I size(I dim) const
    {
        return sizes_[dim];
    }
    I stride(I dim) const
    {
        return strides_[dim];
    }
    PtrType data() const
    {
        return data_;
    }
    decltype(auto) operator[](I index) const
    {
        return TensorAccessor<T, N, Traits, I>(data_, sizes_, strides_)[index];
    }

  private:
    PtrType data_;
    I sizes_[N], strides_[N];
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
using PackedTensorAccessor = GenericPackedTensorAccessor<T, N, Traits, I>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, int64_t>;

// The elements that a tensor and its views share.
class Storage
{
    uint64_t address;
    size_t bytes;

  public:
    Storage(uint64_t address, size_t bytes) : address(address), bytes(bytes)
    {
    }
    void *data() const
    {
        return (void *)address;
    }
    void *mutable_data() const
    {
        return data();
    }
    size_t nbytes() const
    {
        return bytes;
    }
};

// What Tensor::type() returns: dispatch macros and messages of older code use it.
class DeprecatedTypeProperties
{
    TensorOptions options_;

  public:
    DeprecatedTypeProperties(TensorOptions options) : options_(options)
    {
    }
    ScalarType scalarType() const
    {
        return options_.dtype().toScalarType();
    }
    Device device() const
    {
        return options_.device();
    }
    bool is_cuda() const
    {
        return options_.device().is_cuda();
    }
    TensorOptions options() const
    {
        return options_;
    }
    operator TensorOptions() const
    {
        return options_;
    }
    std::string toString() const
    {
        return std::string(is_cuda() ? "CUDA" : "CPU") + c10::toString(scalarType()) + "Type";
    }
    bool operator==(const DeprecatedTypeProperties &other) const
    {
        return scalarType() == other.scalarType() && device().type() == other.device().type();
    }
    bool operator!=(const DeprecatedTypeProperties &other) const
    {
        return !(*this == other);
    }
};
inline std::ostream &operator<<(std::ostream &out, const DeprecatedTypeProperties &type)
{
    return out << type.toString();
}

namespace indexing
{
// One index of Tensor::index() and index_put_(): a number, a slice, None, an ellipsis, a bool or a tensor.
class TensorIndex : public kops::Argument
{
  public:
    using kops::Argument::Argument;
};
} // namespace indexing

class Tensor
{
    // All copies of a tensor share a handle, however they came here: what changes one's sizes changes the others'. A
    // table has the handles by their ids. It is plain, since this is compiled without optimization.
    struct Handle : std::enable_shared_from_this<Handle> {
        KopsTensor tensor;
        Handle *next = nullptr; // in its row
        bool is_given_back = false;
        explicit Handle(const KopsTensor &tensor) : tensor(tensor)
        {
        }
        Handle(const Handle &) = delete;
        ~Handle()
        {
            if (is_given_back)
                return;
            {
                std::lock_guard<std::mutex> lock(handles().mutex);
                leave_row();
            }
            kops::table->release(tensor.id);
        }
        void leave_row()
        {
            Handle **at = &handles().rows[row_of(tensor.id)];
            while (*at != this)
                at = &(*at)->next;
            *at = next;
        }
    };
    static constexpr size_t ROWS = 256;
    static size_t row_of(int64_t id) // ids are addresses
    {
        return ((uint64_t)id >> 6 ^ (uint64_t)id >> 14) % ROWS;
    }
    struct Handles {
        std::mutex mutex;
        Handle *rows[ROWS];
    };
    static Handles &handles()
    {
        static Handles *const made = new Handles(); // outlives global tensors
        return *made;
    }
    static std::shared_ptr<Handle> handle_of(const KopsTensor &tensor)
    {
        std::shared_ptr<Handle> found;
        if (!tensor.id)
            return found;
        {
            std::lock_guard<std::mutex> lock(handles().mutex);
            Handle **row = &handles().rows[row_of(tensor.id)];
            for (Handle *one = *row; one && !found; one = one->next)
                if (one->tensor.id == tensor.id)
                    found = one->weak_from_this().lock(); // none of a handle that is about to go
            if (!found) {
                found = std::make_shared<Handle>(tensor);
                found->next = *row;
                *row = found.get();
                return found;
            }
            found->tensor = tensor;
        }
        kops::table->release(tensor.id);
        return found;
    }
    std::shared_ptr<Handle> handle;

    int64_t wrap(int64_t dim) const
    {
        int64_t n = std::max<int64_t>(this->dim(), 1);
        KOPS_CHECK(IndexError, dim >= -n && dim < n, "Dimension out of range (expected to be in range of [", -n, ", ",
                   n - 1, "], but got ", dim, ")");
        KOPS_CHECK(IndexError, this->dim() > 0, "Dimension specified as ", dim, " but tensor has no dimensions");
        return dim < 0 ? dim + n : dim;
    }
    // Whether these are the dimensions from the smallest stride to the largest. Where more than one order fits, torch
    // takes the tensor as contiguous.
    bool strides_rise(std::initializer_list<int> order) const
    {
        if (dim() != (int64_t)order.size() || stride(1) == 0)
            return false;
        int64_t least = 0;
        for (int d : order) {
            if (size(d) == 0 || stride(d) < least || (d == 0 && least == stride(1)))
                return false;
            least = stride(d) * size(d);
        }
        return true;
    }
    // Calls a function with the indices behind its other arguments.
    template <class L>
    kops::Result indexed(const char *name, std::vector<kops::Argument> arguments, const L &indices) const
    {
        arguments.insert(arguments.end(), indices.begin(), indices.end());
        return kops::Result(name, arguments.data(), arguments.size());
    }
    template <class T> void check_type() const
    {
        constexpr ScalarType type = c10::CppTypeToScalarType<T>::value;
        TORCH_CHECK(scalar_type() == type, "expected scalar type ", type, " but found ", scalar_type());
    }
    template <class T, size_t N> void check_accessor() const
    {
        static_assert(N > 0, "accessor is used for indexing tensor, for scalars use *data_ptr<T>()");
        TORCH_CHECK(dim() == N, "TensorAccessor expected ", N, " dims but tensor has ", dim());
    }

  public:
    Tensor() = default;
    // Takes over a reference that the runtime counts.
    explicit Tensor(const KopsTensor &tensor) : handle(handle_of(tensor))
    {
    }
    Tensor(const Tensor &) = default;
    Tensor(Tensor &&) = default;
    Tensor &operator=(const Tensor &) & = default;
    Tensor &operator=(Tensor &&) & = default;
    // To a temporary, as in x[0] = y, assignment writes the elements.
    Tensor &operator=(const Tensor &other) &&
    {
        return copy_(other);
    }
    Tensor &operator=(Tensor &&other) &&
    {
        return copy_(other);
    }
    Tensor &operator=(const Scalar &value) &&
    {
        return fill_(value);
    }
    // A reference for the runtime: the handle's own where nobody else has it and this tensor is about to go.
    KopsTensor give_back() const
    {
        {
            std::lock_guard<std::mutex> lock(handles().mutex);
            handle->is_given_back = handle.use_count() == 1;
            if (handle->is_given_back)
                handle->leave_row();
        }
        if (!handle->is_given_back)
            kops::table->retain(handle->tensor.id);
        return handle->tensor;
    }
    // torch tells an undefined tensor as an empty one without a type and a device.
    KopsTensor &described() const
    {
        static KopsTensor undefined = [] {
            KopsTensor tensor{};
            tensor.dtype = (int)ScalarType::Undefined, tensor.device_type = -1, tensor.ndim = 1;
            return tensor;
        }();
        return handle ? handle->tensor : undefined;
    }

    bool defined() const
    {
        return handle != nullptr;
    }
    void reset()
    {
        handle.reset();
    }
    bool is_same(const Tensor &other) const
    {
        return handle == other.handle || (defined() && other.defined() && described().id == other.described().id);
    }
    int64_t dim() const
    {
        return described().ndim;
    }
    int64_t ndimension() const
    {
        return dim();
    }
    int64_t size(int64_t dim) const
    {
        return described().sizes[wrap(dim)];
    }
    int64_t stride(int64_t dim) const
    {
        return described().strides[wrap(dim)];
    }
    IntArrayRef sizes() const
    {
        return {described().sizes, (size_t)dim()};
    }
    IntArrayRef strides() const
    {
        return {described().strides, (size_t)dim()};
    }
    int64_t numel() const
    {
        int64_t count = 1;
        for (int64_t size : sizes())
            count *= size;
        return count;
    }
    int64_t itemsize() const
    {
        return (int64_t)elementSize(scalar_type());
    }
    int64_t element_size() const
    {
        return itemsize();
    }
    size_t nbytes() const
    {
        return (size_t)(numel() * itemsize());
    }
    bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const
    {
        static const int channels_last[] = {1, 3, 2, 0}, channels_last_3d[] = {1, 4, 3, 2, 0};
        bool last = format == MemoryFormat::ChannelsLast, last_3d = format == MemoryFormat::ChannelsLast3d;
        if ((last && dim() != 4) || (last_3d && dim() != 5))
            return false;
        if (numel() == 0 && !last && !last_3d)
            return true;
        int64_t expected = 1;
        for (int i = 0; i < dim(); i++) {
            int64_t d = last ? channels_last[i] : last_3d ? channels_last_3d[i] : dim() - 1 - i;
            if (size(d) != 1 && stride(d) != expected)
                return false;
            expected *= size(d);
        }
        return true;
    }
    MemoryFormat suggest_memory_format() const
    {
        return strides_rise({1, 3, 2, 0})      ? MemoryFormat::ChannelsLast
               : strides_rise({1, 4, 3, 2, 0}) ? MemoryFormat::ChannelsLast3d
                                               : MemoryFormat::Contiguous;
    }
    bool is_non_overlapping_and_dense() const
    {
        std::vector<std::pair<int64_t, int64_t>> dims; // stride, size
        for (int i = 0; i < dim(); i++)
            if (size(i) != 1)
                dims.push_back({stride(i), size(i)});
        std::sort(dims.begin(), dims.end());
        int64_t expected = 1;
        for (auto [stride, size] : dims) {
            if (numel() && stride != expected)
                return false;
            expected *= size;
        }
        return true;
    }
    ScalarType scalar_type() const
    {
        return (ScalarType)described().dtype;
    }
    TypeMeta dtype() const
    {
        return scalar_type();
    }
    Device device() const
    {
        TORCH_CHECK(defined(), "tensor does not have a device");
        return {(DeviceType)described().device_type, (DeviceIndex)described().device_index};
    }
    int64_t get_device() const
    {
        return described().device_index;
    }
    bool is_cuda() const
    {
        return defined() && device().is_cuda();
    }
    bool is_cpu() const
    {
        return defined() && device().is_cpu();
    }
    bool is_meta() const
    {
        return defined() && device().is_meta();
    }
    // Only dense tensors reach an extension.
    bool is_sparse() const
    {
        return false;
    }
    bool is_quantized() const
    {
        return false;
    }
    Layout layout() const
    {
        return kStrided;
    }
    bool is_floating_point() const
    {
        return isFloatingType(scalar_type());
    }
    bool is_complex() const
    {
        return isComplexType(scalar_type());
    }
    bool is_signed() const
    {
        return !isIntegralType(scalar_type(), true) || (scalar_type() >= kChar && scalar_type() <= kLong);
    }
    bool requires_grad() const
    {
        return described().requires_grad != 0;
    }
    const Tensor &requires_grad_(bool grad = true) const
    {
        kops::call_in_place(*this, "requires_grad_", {*this, grad});
        return *this;
    }
    const Tensor &set_requires_grad(bool grad) const
    {
        return requires_grad_(grad);
    }
    Tensor grad() const
    {
        return kops::call<Tensor>("grad", {*this});
    }
    TensorOptions options() const
    {
        return TensorOptions(scalar_type()).device(device());
    }
    DeprecatedTypeProperties type() const
    {
        return options();
    }
    std::string toString() const
    {
        return type().toString();
    }
    int64_t storage_offset() const
    {
        return kops::call<int64_t>("storage_offset", {*this});
    }
    Storage storage() const
    {
        return Storage(described().data - storage_offset() * itemsize(), kops::call<int64_t>("storage_bytes", {*this}));
    }
    bool has_storage() const
    {
        return defined();
    }
    long use_count() const
    {
        return handle.use_count();
    }

    void *data_ptr() const
    {
        TORCH_CHECK(defined(), "Cannot access data pointer of Tensor that doesn't have storage");
        return (void *)described().data;
    }
    const void *const_data_ptr() const
    {
        return data_ptr();
    }
    void *mutable_data_ptr() const
    {
        return data_ptr();
    }
    template <class T> T *data_ptr() const
    {
        check_type<std::remove_const_t<T>>();
        return (T *)data_ptr();
    }
    template <class T> const T *const_data_ptr() const
    {
        return data_ptr<std::remove_const_t<T>>();
    }
    template <class T> T *mutable_data_ptr() const
    {
        return data_ptr<T>();
    }
    template <class T> T *data() const
    {
        return data_ptr<T>();
    }
    Tensor data() const
    {
        return kops::call<Tensor>("detach", {*this});
    }
    Tensor variable_data() const
    {
        return data();
    }

    // Elements of a tensor of the host by index.
    template <class T, size_t N> TensorAccessor<T, N> accessor() const &
    {
        check_accessor<T, N>();
        TORCH_CHECK(is_cpu() || described().flags & KOPS_READABLE, "accessor() needs a tensor of the CPU");
        return {data_ptr<T>(), described().sizes, described().strides};
    }
    template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
    GenericPackedTensorAccessor<T, N, Traits, I> generic_packed_accessor() const
    {
        check_accessor<T, N>();
        return {data_ptr<T>(), described().sizes, described().strides};
    }
    template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
    GenericPackedTensorAccessor<T, N, Traits, I> packed_accessor() const
    {
        return generic_packed_accessor<T, N, Traits, I>();
    }
    template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
    PackedTensorAccessor32<T, N, Traits> packed_accessor32() const
    {
        TORCH_CHECK(numel() <= INT32_MAX,
                    "numel needs to be smaller than int32_t max; otherwise, please use packed_accessor64");
        return generic_packed_accessor<T, N, Traits, int32_t>();
    }
    template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
    PackedTensorAccessor64<T, N, Traits> packed_accessor64() const
    {
        return generic_packed_accessor<T, N, Traits, int64_t>();
    }

    Scalar item() const
    {
        return kops::call<Scalar>("item", {*this});
    }
    template <class T> T item() const
    {
        return item().to<T>();
    }

    Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const
    {
        return is_contiguous(format) ? *this : kops::call<Tensor>("contiguous memory_format", {*this, format});
    }
    Tensor cuda() const
    {
        return kops::call<Tensor>("cuda", {*this});
    }
    Tensor cpu() const
    {
        return kops::call<Tensor>("cpu", {*this});
    }
    Tensor toType(ScalarType type) const
    {
        return kops::call<Tensor>("to", {*this, type});
    }
    // Lists of indices as Python's brackets take them, or of tensors.
    Tensor index(ArrayRef<indexing::TensorIndex> indices) const
    {
        return indexed("index", {*this}, indices).tensor();
    }
    Tensor index(std::initializer_list<indexing::TensorIndex> indices) const
    {
        return indexed("index", {*this}, indices).tensor();
    }
    Tensor index(const List<std::optional<Tensor>> &indices) const
    {
        return indexed("index", {*this}, indices).tensor();
    }
#define KOPS_INDEX_PUT(INDICES, VALUE)                                                                                 \
    Tensor &index_put_(INDICES indices, VALUE value) const                                                             \
    {                                                                                                                  \
        indexed("index_put_", {*this, value, false}, indices);                                                         \
        return const_cast<Tensor &>(*this);                                                                            \
    }
    KOPS_INDEX_PUT(ArrayRef<indexing::TensorIndex>, const Tensor &)
    KOPS_INDEX_PUT(ArrayRef<indexing::TensorIndex>, const Scalar &)
    KOPS_INDEX_PUT(std::initializer_list<indexing::TensorIndex>, const Tensor &)
    KOPS_INDEX_PUT(std::initializer_list<indexing::TensorIndex>, const Scalar &)
#undef KOPS_INDEX_PUT
    Tensor &index_put_(const List<std::optional<Tensor>> &indices, const Tensor &value, bool accumulate = false) const
    {
        indexed("index_put_", {*this, value, accumulate}, indices);
        return const_cast<Tensor &>(*this);
    }
    Tensor operator[](int64_t index) const
    {
        return select(0, index);
    }
    Tensor operator[](const Scalar &index) const
    {
        return select(0, index.toLong());
    }
    Tensor operator[](const Tensor &index) const
    {
        return this->index({index});
    }

    Tensor operator-() const
    {
        return kops::call<Tensor>("neg", {*this});
    }
    Tensor operator~() const
    {
        return kops::call<Tensor>("bitwise_not", {*this});
    }
#define KOPS_ASSIGN(OP, NAME)                                                                                          \
    Tensor &operator OP(const Tensor &other) const                                                                     \
    {                                                                                                                  \
        return kops::call_in_place(*this, NAME, {*this, other});                                                       \
    }                                                                                                                  \
    Tensor &operator OP(const Scalar &other) const                                                                     \
    {                                                                                                                  \
        return kops::call_in_place(*this, NAME, {*this, other});                                                       \
    }
    KOPS_ASSIGN(+=, "add_")
    KOPS_ASSIGN(-=, "sub_")
    KOPS_ASSIGN(*=, "mul_")
    KOPS_ASSIGN(/=, "div_")
    KOPS_ASSIGN(&=, "bitwise_and_")
    KOPS_ASSIGN(|=, "bitwise_or_")
    KOPS_ASSIGN(^=, "bitwise_xor_")
#undef KOPS_ASSIGN

#include <kops/methods.h> // generated of ops.txt
    // An int would rather be the bool of var(bool unbiased) than a list of dimensions.
    Tensor var(int dim) const
    {
        return var(IntArrayRef(dim));
    }
    Tensor std(int dim) const
    {
        return std(IntArrayRef(dim));
    }
};

inline std::ostream &operator<<(std::ostream &out, const Tensor &tensor)
{
    if (!tensor.defined())
        return out << "[ Tensor (undefined) ]";
    return out << kops::call<std::string>("text", {tensor});
}
} // namespace at

namespace kops
{
inline Argument::Argument(const Tensor &tensor)
{
    if (tensor.defined())
        value_ = {KOPS_IS_TENSOR, 0, tensor.described().id, 0, nullptr};
}
inline Argument::Argument(at::TensorList list)
{
    for (const Tensor &tensor : list)
        integers.push_back(tensor.defined() ? tensor.described().id : 0);
    point(KOPS_IS_TENSORS, nullptr, integers.size());
}
inline Argument::Argument(const std::vector<Tensor> &list) : Argument(at::TensorList(list))
{
}

inline Result::Result(const char *name, const Argument *arguments, size_t count)
{
    std::vector<KopsValue> values;
    values.reserve(count);
    for (size_t i = 0; i < count; i++)
        values.push_back(arguments[i].value());
    if (table->op(name, values.data(), (int)count, tensors, &this->count, &scalar))
        throw c10::Error(table->error());
    if (this->count > KOPS_RESULTS) {
        many.assign((const KopsTensor *)scalar.p, (const KopsTensor *)scalar.p + this->count);
        tensors = many.data();
    }
}
inline Result::~Result()
{
    for (int i = 0; i < count; i++)
        if (tensors[i].id)
            table->release(tensors[i].id);
}
inline Tensor Result::tensor(int index)
{
    if (count == 0) // None
        return Tensor();
    TORCH_CHECK(index < count, "torch returned ", count, " tensors where ", index + 1, " are needed");
    Tensor tensor(tensors[index]);
    tensors[index].id = 0;
    return tensor;
}

template <class R> struct Convert {
    static R of(Result &result)
    {
        if constexpr (std::is_same_v<R, c10::Scalar>)
            return result.number();
        else if constexpr (std::is_same_v<R, std::string>)
            return result.text();
        else
            return result.number().to<R>();
    }
};
template <> struct Convert<void> {
    static void of(Result &)
    {
    }
};
template <> struct Convert<Tensor> {
    static Tensor of(Result &result)
    {
        return result.tensor();
    }
};
template <> struct Convert<std::vector<Tensor>> {
    static std::vector<Tensor> of(Result &result)
    {
        std::vector<Tensor> list;
        for (int i = 0; i < result.size(); i++)
            list.push_back(result.tensor(i));
        return list;
    }
};
template <class... T> struct Convert<std::tuple<T...>> {
    template <size_t... I> static std::tuple<T...> of(Result &result, std::index_sequence<I...>)
    {
        return {result.tensor(I)...};
    }
    static std::tuple<T...> of(Result &result)
    {
        return of(result, std::index_sequence_for<T...>());
    }
};

template <class R> R call(const char *name, std::initializer_list<Argument> arguments)
{
    Result result(name, arguments.begin(), arguments.size());
    return Convert<R>::of(result);
}
inline Tensor &call_in_place(const Tensor &changed, const char *name, std::initializer_list<Argument> arguments)
{
    Result result(name, arguments.begin(), arguments.size());
    KopsTensor &described = changed.described();
    if (result.size() > 0) {
        int64_t id = described.id;
        described = *result.begin();
        described.id = id;
    }
    // torch gives handles of constant tensors back as if they were not: they are constant as pointers are.
    return const_cast<Tensor &>(changed);
}
} // namespace kops
