// Arrays in a library made with nanobind: `test_other_peers.py` compiles it.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <utility>

namespace nb = nanobind;

namespace {

/// An array of zeros that belongs to its receiver.
template <typename Array> Array zeros(size_t length) {
  float *data = new float[length]();
  nb::capsule owner(data, [](void *memory) noexcept { delete[] static_cast<float *>(memory); });
  return Array(data, {length}, owner);
}

using Floats = nb::ndarray<float, nb::ndim<1>, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::ndim<1>, nb::device::cpu>;

/// Keeps an array that it reads.
struct Holder {
  explicit Holder(nb::ndarray<nb::ro> array) : array(std::move(array)) {}
  nb::ndarray<nb::ro> array;
};

} // namespace

NB_MODULE(nanobind_arrays, module) {
  // Without a framework it is a raw capsule.
  module.def("bare", &zeros<nb::ndarray<float, nb::ndim<1>, nb::device::cpu>>);
  module.def("array_api", &zeros<nb::ndarray<nb::array_api, float, nb::ndim<1>, nb::device::cpu>>);
  module.def("array_api_const", &zeros<nb::ndarray<nb::array_api, const float, nb::ndim<1>, nb::device::cpu>>);
  module.def("numpy", &zeros<nb::ndarray<nb::numpy, float, nb::ndim<1>, nb::device::cpu>>);
  module.def("address", [](nb::ndarray<nb::ro> array) { return reinterpret_cast<uintptr_t>(array.data()); });
  nb::class_<Holder>(module, "Holder").def(nb::init<nb::ndarray<nb::ro>>());
  module.def("total", [](ConstFloats array) {
    float total = 0;
    for (size_t index = 0; index < array.shape(0); ++index) total += array(index);
    return total;
  });
  // Without the interpreter lock, as a body that shall run beside others.
  module.def("fill", [](Floats array, float value) {
    nb::gil_scoped_release released;
    for (size_t index = 0; index < array.shape(0); ++index) array(index) = value;
  });
}
