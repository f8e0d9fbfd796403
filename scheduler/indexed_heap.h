// A binary heap of pointers whose items know their place in it, so that any item can be moved or
// removed in O(log n) and nothing is allocated in steady state.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace fulcrum {

// `Before(a, b)`: a comes out before b. `T::*Place` is the heap's own; an item is in at most one
// heap per place.
template <class T, class Before, size_t T::*Place>
class IndexedHeap {
 public:
  bool empty() const { return items_.empty(); }
  size_t size() const { return items_.size(); }
  T* top() const { return items_.front(); }

  // Room for one more: the next Push allocates nothing.
  void ReserveOne() {
    if (items_.size() == items_.capacity()) items_.reserve(2 * items_.size() + 8);
  }
  void Push(T* item) {
    item->*Place = items_.size();
    items_.push_back(item);
    Up(item->*Place);
  }
  void Remove(T* item) {
    const size_t place = item->*Place;
    T* const last = items_.back();
    items_.pop_back();
    if (last == item) return;
    Put(place, last);
    Update(last);
  }
  // To be called after the item's order changed.
  void Update(T* item) {
    Up(item->*Place);
    Down(item->*Place);
  }

 private:
  void Put(size_t place, T* item) {
    items_[place] = item;
    item->*Place = place;
  }
  void Swap(size_t a, size_t b) {
    T* const item = items_[a];
    Put(a, items_[b]);
    Put(b, item);
  }
  void Up(size_t place) {
    for (; place > 0; place = (place - 1) / 2) {
      if (!Before()(*items_[place], *items_[(place - 1) / 2])) return;
      Swap(place, (place - 1) / 2);
    }
  }
  void Down(size_t place) {
    for (;;) {
      size_t first = place;
      for (size_t child = 2 * place + 1; child <= 2 * place + 2; ++child) {
        if (child < items_.size() && Before()(*items_[child], *items_[first])) first = child;
      }
      if (first == place) return;
      Swap(place, first);
      place = first;
    }
  }

  std::vector<T*> items_;
};

}  // namespace fulcrum
