"""Index tables for a transitive relation: how to compute with B when B_ij != 0 only for "i is j or above j".

Let up(j) be j with all that is above it. B maps the vectors supported on up(j) to themselves, so restricting matrices
to up(j) keeps products and inverses, and column j of A B or of A^-1 needs nothing but the small matrix A[up(j), up(j)].
Columns are therefore computed independently of one another, many small dense matrices at a time, on any device.

Numbering: coordinates are placed so that what is above comes first. Column j is stored as its entries at up(j) in that
order, all columns one after another: `rows[starts[j] : starts[j + 1]]` are the places up(j), the last one j itself.
In an elimination tree up(j) is a path from the root, a stretch of single children has nested up-sets, and one gathered
matrix serves all its columns (a supernode).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from natgrad.groups.base import CHUNK

KEEP = 2**24  # gather tables up to this many entries are kept, larger ones made anew in every use


@dataclass(frozen=True)
class Bucket:
    """n supernodes of about equal size, padded at the front to R places of which the last S hold their own columns."""

    supernode: np.ndarray  # (n,)
    R: int
    S: int


class UpSets:
    """The tables for one relation on one device."""

    def __init__(self, starts: np.ndarray, rows: np.ndarray, order: np.ndarray, device: torch.device):
        self.p, self.size, self.device = len(order), len(rows), device
        # half the memory and twice the speed for gathers; index_add is fast with 64 bits only
        self.index = torch.int32 if self.size + 2 < 2**31 else torch.int64
        self._starts, self._rows = starts, rows
        length = np.diff(starts)  # |up(j)|
        self._is_tree = _is_tree(starts, rows)
        first = _heads(starts, rows) if self._is_tree else np.arange(self.p)
        self._last = np.append(first[1:], self.p)[: len(first)] - 1  # of each supernode
        self._own = self._last - first + 1
        self._buckets = _buckets(length[self._last], self._own)
        self.diagonal = self._to(starts[1:] - 1).long()  # where B_jj stands
        self.row = self._to(order[rows]).long()  # the coordinates of each entry
        self.column = self._to(order[np.repeat(np.arange(self.p), length)]).long()
        self._first_entry = self._to(starts)
        self._keys = self._to(np.empty(0)) if self._is_tree else self._column_and_row()
        self.entries = self._entries()
        entries = sum(len(bucket.supernode) * bucket.R**2 for bucket in self._buckets)
        self._kept = [self._table(b, 0, len(b.supernode)) for b in self._buckets] if entries <= KEEP else None

    def _to(self, array: np.ndarray) -> Tensor:
        return torch.tensor(array, dtype=self.index, device=self.device)

    def tables(self) -> Iterator[tuple[Tensor, Tensor]]:
        """For blocks of supernodes: where B[up, up]^T stands, (n, R, R), and where its own columns do, (n, S, R).

        Places outside the relation point at a zero kept behind the values, padding at a one behind that.
        """
        if self._kept is not None:
            yield from self._kept
            return
        for bucket in self._buckets:
            step = max(1, CHUNK // bucket.R**2)
            for start in range(0, len(bucket.supernode), step):
                yield self._table(bucket, start, start + step)

    def _table(self, bucket: Bucket, start: int, stop: int) -> tuple[Tensor, Tensor]:
        chosen = bucket.supernode[start:stop]
        R, S, last = bucket.R, bucket.S, self._last[chosen]
        slot = self._starts[last + 1][:, None] - np.arange(R, 0, -1)  # up-sets end there; padding in front of them
        real = slot >= self._starts[last][:, None]
        place = self._to(np.where(real, self._rows[np.maximum(slot, 0)], 0))  # (n, R)
        is_real = torch.tensor(real, device=self.device)
        m = torch.arange(R, dtype=self.index, device=self.device)
        if self._is_tree:  # what is above a place of the path is the path up to it
            pads = R - is_real.sum(-1, keepdim=True, dtype=self.index)
            chain = self._first_entry[place][:, :, None] + (m - pads)[:, None, :]
            inside = (m <= m[:, None]) & is_real[:, None, :]
        else:
            keys = self._keys
            wanted = place[:, :, None].long() * self.p + place[:, None, :]
            found = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
            inside = (keys[found] == wanted) & is_real[:, :, None] & is_real[:, None, :]
            chain = found.to(self.index)
        chain = torch.where(inside, chain, self.size)
        chain.diagonal(dim1=1, dim2=2).masked_fill_(~is_real, self.size + 1)
        foreign = m[R - S :] < R - self._to(self._own[chosen])[:, None]  # (n, S): columns of another supernode
        return chain, torch.where(foreign[:, :, None], self.size, chain[:, R - S :])

    def _column_and_row(self) -> Tensor:
        """One sorted number for each entry, by which relations that are no trees find their entries."""
        keys = np.repeat(np.arange(self.p), np.diff(self._starts)) * self.p + self._rows
        return torch.tensor(keys, device=self.device)

    def _entries(self) -> Tensor:
        """Where each entry stands among the own columns (n, S, R) of all tables, laid end to end."""
        end = np.empty(self.p, dtype=np.int64)  # of each column
        offset = 0
        for bucket in self._buckets:
            own = self._own[bucket.supernode]
            n = np.repeat(np.arange(len(own)), own)
            s = np.arange(len(n)) - np.repeat(np.cumsum(own) - own, own)  # columns before the last one end earlier
            end[self._last[bucket.supernode][n] - s] = offset + (n * bucket.S + bucket.S - s) * bucket.R - s
            offset += len(own) * bucket.S * bucket.R
        return self._to(np.repeat(end - self._starts[1:], np.diff(self._starts)) + np.arange(self.size))


def _is_tree(starts: np.ndarray, rows: np.ndarray) -> bool:
    """Whether every up-set is a path: up(j) is up(i) and j, for i the last place above j."""
    for j in range(len(starts) - 1):
        above = rows[starts[j] : starts[j + 1] - 1]
        if len(above) and not np.array_equal(above, rows[starts[above[-1]] : starts[above[-1] + 1]]):
            return False
    return True


def _heads(starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The first places of the stretches of single children."""
    p = len(starts) - 1
    if p == 0:
        return np.arange(0)
    has_parent = np.diff(starts) > 1
    parent = np.where(has_parent, rows[np.maximum(starts[1:] - 2, 0)], -1)
    children = np.bincount(parent[has_parent], minlength=p)
    before = np.arange(-1, p - 1)
    continues = has_parent & (parent == before) & (children[before] == 1)
    return np.flatnonzero(~continues)


def _buckets(R: np.ndarray, S: np.ndarray) -> list[Bucket]:
    """Supernodes sorted by size and cut where padding would cost more than another round of calls."""
    buckets: list[Bucket] = []

    def work(r: int, s: int) -> float:
        return r * r * (1 + s / 8)

    order = np.lexsort((S, R))
    begin, exact, top_R, top_S = 0, 0.0, 0, 0
    for end, i in enumerate(order.tolist()):
        r, s = int(R[i]), int(S[i])
        new_R, new_S, new_exact = max(top_R, r), max(top_S, s), exact + work(r, s)
        if end > begin and (end - begin + 1) * work(new_R, new_S) > 1.3 * new_exact + 2**15:
            buckets.append(Bucket(order[begin:end], top_R, top_S))
            begin, new_R, new_S, new_exact = end, r, s, work(r, s)
        exact, top_R, top_S = new_exact, new_R, new_S
    if len(order):
        buckets.append(Bucket(order[begin:], top_R, top_S))
    return buckets
