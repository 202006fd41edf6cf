#include <pybind11/critical_section.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>

#include "arrays.h"
#include "kvcache/batch.h"
#include "kvcache/batch_verify.h"
#include "kvcache/verify_table.h"
#include "release_gil.h"
#include "unwrap.h"

namespace py = pybind11;

namespace {

using kvcache::Batch;
using kvcache::BatchTable;
using kvcache::LayerRows;
using kvcache::MutableLayerRows;
using kvcache::Sequence;
using kvcache::bindings::Components;
using kvcache::bindings::memory_array;
using kvcache::bindings::ReleaseGil;
using kvcache::bindings::token_span;
using kvcache::bindings::Tokens;
using kvcache::bindings::unwrap;
using kvcache::codec::MutableRowsView;
using kvcache::codec::RowsView;
using Counts = py::array_t<std::uint64_t, py::array::c_style>;
using Arrays = std::vector<py::object>;

std::span<const std::uint64_t> count_span(const std::optional<Counts>& counts) {
  if (!counts) return {};
  return {counts->data(), static_cast<std::size_t>(counts->size())};
}

// A batch and the arrays it has shown: the same table is the same array.
class ArrayBatch {
 public:
  explicit ArrayBatch(const std::vector<Sequence*>& sequences) : batch_(make(sequences)) {}

  Batch& batch() { return batch_; }
  // `self` is this object's handle in Python: it guards what has been shown.
  py::object block_table(py::handle self, std::size_t group) {
    const BatchTable table = [&] {
      const ReleaseGil nogil;
      return unwrap(batch_.block_table(group));
    }();
    const py::scoped_critical_section guard(self);
    if (group >= shown_.size()) shown_.resize(group + 1);
    Shown& shown = shown_[group];
    if (shown.data != table.data) {
      const auto columns = static_cast<py::ssize_t>(table.columns);
      constexpr py::ssize_t kEntry = sizeof(std::int32_t);
      shown.array =
          memory_array(kvcache::DType::kI32, {static_cast<py::ssize_t>(table.rows), columns},
                       {columns * kEntry, kEntry}, table.data, table.owner);
      shown.data = table.data;
    }
    return shown.array;
  }

 private:
  struct Shown {
    const std::int32_t* data = nullptr;  // not handed out anew while the array lives
    py::object array;
  };

  static Batch make(const std::vector<Sequence*>& sequences) {
    const ReleaseGil nogil;
    return unwrap(Batch::create(sequences));
  }

  Batch batch_;
  std::vector<Shown> shown_;  // by group
};

void write_rows(ArrayBatch& batch, std::int32_t layer, const Counts& starts,
                const std::optional<Counts>& counts, const Arrays& components) {
  const Components<RowsView> rows(components);
  const auto from = count_span(starts);
  const auto of = count_span(counts);
  const ReleaseGil nogil;
  unwrap(batch.batch().write(layer, from, of, rows.views()));
}

void read_rows(ArrayBatch& batch, std::int32_t layer, const Counts& starts,
               const std::optional<Counts>& counts, const Arrays& components) {
  const Components<MutableRowsView> rows(components);
  const auto from = count_span(starts);
  const auto of = count_span(counts);
  const ReleaseGil nogil;
  unwrap(batch.batch().read(layer, from, of, rows.views()));
}

kvcache::BatchVerifySession begin_verify(ArrayBatch& batch, const Tokens& drafts,
                                         const std::optional<Counts>& counts,
                                         const std::optional<Tokens>& parents,
                                         kvcache::VerifyTable* table,
                                         kvcache::VerifyStrategy strategy,
                                         kvcache::CarryTable* carry) {
  const auto span = token_span(drafts);
  const auto of = count_span(counts);
  kvcache::BatchVerifyOptions options{.table = table, .strategy = strategy, .carry = carry};
  if (parents) options.parents = token_span(*parents);
  const ReleaseGil nogil;
  return unwrap(batch.batch().begin_verify(span, of, options));
}

void fill_table(ArrayBatch& batch, std::size_t group, py::array_t<std::int32_t>& out) {
  std::int32_t* data = out.mutable_data();  // throws where it is read-only
  const std::span<std::int32_t> entries(data, static_cast<std::size_t>(out.size()));
  const auto columns = static_cast<std::size_t>(out.shape(1));
  const ReleaseGil nogil;
  unwrap(batch.batch().block_table(group, entries, columns));
}

// Signed: numpy makes floats of unsigned numbers that meet signed ones.
py::array_t<std::int64_t> length_array(ArrayBatch& batch) {
  const auto lengths = [&] {
    const ReleaseGil nogil;
    return unwrap(batch.batch().lengths());
  }();
  py::array_t<std::int64_t> array(static_cast<py::ssize_t>(lengths.size()));
  std::copy(lengths.begin(), lengths.end(), array.mutable_data());
  return array;
}

// Rows: LayerRows over RowsView, or MutableLayerRows over MutableRowsView.
template <typename Rows, typename View>
class Layers {
 public:
  explicit Layers(const std::vector<std::pair<std::int32_t, Arrays>>& layers) {
    for (const auto& [layer, arrays] : layers) {
      borrowed_.push_back(std::make_unique<Components<View>>(arrays));
      rows_.push_back({layer, borrowed_.back()->views()});
    }
  }
  std::span<const Rows> rows() const { return rows_; }

 private:
  std::vector<std::unique_ptr<Components<View>>> borrowed_;
  std::vector<Rows> rows_;
};

void write_layers(Sequence& sequence, std::uint64_t start,
                  const std::vector<std::pair<std::int32_t, Arrays>>& layers) {
  const Layers<LayerRows, RowsView> rows(layers);
  const ReleaseGil nogil;
  unwrap(sequence.write_layers(start, rows.rows()));
}

void read_layers(const Sequence& sequence, std::uint64_t start,
                 const std::vector<std::pair<std::int32_t, Arrays>>& layers) {
  const Layers<MutableLayerRows, MutableRowsView> rows(layers);
  const ReleaseGil nogil;
  unwrap(sequence.read_layers(start, rows.rows()));
}

}  // namespace

void bind_batch(py::module_& m) {
  using release_gil = py::call_guard<ReleaseGil>;
  py::class_<ArrayBatch>(m, "Batch")
      .def(py::init<const std::vector<Sequence*>&>(), py::arg("sequences"))
      .def("lengths", &length_array)
      .def("extend",
           [](ArrayBatch& batch, const Tokens& tokens, const std::optional<Counts>& counts) {
             const auto span = token_span(tokens);
             const auto of = count_span(counts);
             const ReleaseGil nogil;
             unwrap(batch.batch().extend(span, of));
           })
      .def("prepare",
           [](ArrayBatch& batch, const std::optional<Counts>& counts) {
             const auto of = count_span(counts);
             const ReleaseGil nogil;
             unwrap(batch.batch().prepare(of));
           })
      .def("advance",
           [](ArrayBatch& batch, const std::optional<Counts>& counts, bool in_place) {
             const auto of = count_span(counts);
             const ReleaseGil nogil;
             unwrap(in_place ? batch.batch().advance_in_place(of) : batch.batch().advance(of));
           })
      .def("write", &write_rows, py::arg("layer"), py::arg("starts"), py::arg("counts"),
           py::arg("components"))
      .def("read", &read_rows, py::arg("layer"), py::arg("starts"), py::arg("counts"),
           py::arg("components"))
      .def("begin_verify", &begin_verify, py::arg("drafts"), py::arg("counts"), py::arg("parents"),
           py::arg("table").none(true), py::arg("strategy"), py::arg("carry").none(true))
      .def("block_table",
           [](const py::object& self, std::size_t group) {
             return self.cast<ArrayBatch&>().block_table(self, group);
           })
      .def("fill_block_table", &fill_table);
  m.def("write_layers", &write_layers, py::arg("sequence"), py::arg("start"), py::arg("layers"));
  m.def("read_layers", &read_layers, py::arg("sequence"), py::arg("start"), py::arg("layers"));
  m.def(
      "prepare",
      [](Sequence& sequence, std::uint64_t positions) { unwrap(sequence.prepare(positions)); },
      py::arg("sequence"), py::arg("positions"), release_gil());
  m.def(
      "advance_in_place",
      [](Sequence& sequence, std::uint64_t positions) {
        unwrap(sequence.advance_in_place(positions));
      },
      py::arg("sequence"), py::arg("positions"), release_gil());
}
