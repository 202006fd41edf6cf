"""Trees of draft tokens: who may see whom, where each stands, and which path is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache import _core
from kvcache._arguments import as_count, as_tokens

if TYPE_CHECKING:
    from typing import Self

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

__all__ = ["TokenTree"]


class TokenTree:
    """Draft tokens that share beginnings, verified by one forward pass. Immutable.

    Row 0 is the root, the last known token; every other row has a parent before it. A row sees its
    ancestors and itself, and stands as many positions after the root as it is deep::

        tree = TokenTree([-1, 0, 0, 1])  # rows 1 and 2 follow the root, row 3 follows row 1
        with seq.begin_verify(drafts, parents=tree) as session:
            ...  # run session.tokens at session.positions under tree.mask()
            path, bonus = tree.accept(session.tokens, picks)
            session.commit(path)

    Args:
        parents: the parent of each row, ``[nodes]``: -1 for the root, one of ``0..i - 1`` for row
            ``i``. At most `max_nodes`.

    Raises:
        InvalidArgumentError: they are not; the message names the first that is wrong.

    Source: tree attention of SpecInfer, arXiv:2305.09781; retrieval indices of Medusa,
    arXiv:2401.10774.

    >>> tree = TokenTree([-1, 0, 0, 1])
    >>> tree.mask()
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 0, 1, 0],
           [1, 1, 0, 1]], dtype=uint8)
    >>> tree.positions(7)
    array([7, 8, 8, 9])
    >>> tree.retrieval_indices
    array([[ 0,  2, -1],
           [ 0,  1,  3]], dtype=int32)
    """

    __slots__ = ("_core",)

    #: Most nodes of a tree.
    max_nodes: int = 4096

    def __init__(self, parents: ArrayLike) -> None:
        self._core = _core.TokenTree(as_tokens(parents, "parents"))

    @classmethod
    def linear(cls, nodes: int) -> Self:
        """The root and ``nodes - 1`` drafts, each after the one before it.

        Raises:
            InvalidArgumentError: no nodes, or more than `max_nodes`.
        """
        tree = cls.__new__(cls)
        tree._core = _core.TokenTree.linear(as_count(nodes, "nodes"))
        return tree

    @property
    def nodes(self) -> int:
        """Rows of the tree, the root included."""
        return self._core.nodes

    @property
    def leaves(self) -> int:
        """Nodes without a child."""
        return self._core.leaves

    @property
    def depth(self) -> int:
        """Of the deepest node; the root's is 0."""
        return self._core.depth

    @property
    def parents(self) -> NDArray[np.int32]:
        """``[nodes]``, -1 for the root; a copy."""
        return self._core.parents()

    @property
    def depths(self) -> NDArray[np.int32]:
        """``[nodes]``; a copy."""
        return self._core.depths()

    @property
    def first_child(self) -> NDArray[np.int32]:
        """The lowest child of each node, ``[nodes]``, -1 for leaves; a copy."""
        return self._core.first_child()

    @property
    def next_sibling(self) -> NDArray[np.int32]:
        """The next child of each node's parent, ``[nodes]``, -1 for the last; a copy."""
        return self._core.next_sibling()

    def children(self, node: int) -> list[int]:
        """Children of one node, ascending.

        Raises:
            InvalidArgumentError: no such node.
        """
        node = as_count(node, "node", most=self.nodes - 1)
        first, following = self.first_child, self.next_sibling
        found, child = [], int(first[node])
        while child != -1:
            found.append(child)
            child = int(following[child])
        return found

    def path(self, node: int) -> NDArray[np.int32]:
        """Nodes from the root to ``node``, both included.

        Raises:
            InvalidArgumentError: no such node.
        """
        return self._core.path(as_count(node, "node"))

    @property
    def retrieval_indices(self) -> NDArray[np.int32]:
        """The paths to all leaves, which ascend: ``[leaves, depth + 1]``, padded with -1."""
        return self._core.retrieval_indices()

    def positions(self, start: int) -> NDArray[np.int64]:
        """``start`` and the depth of each node, ``[nodes]``.

        Raises:
            InvalidArgumentError: beyond 63 bits.
        """
        return self._core.positions(as_count(start, "start"))

    def mask(self, prefix: int = 0) -> NDArray[np.uint8]:
        """1 where a row sees a column, 0 elsewhere.

        Args:
            prefix: columns before the tree that every row sees: positions that the sequence holds.

        Returns:
            ``[nodes, prefix + nodes]``, for `torch` and `numpy` a view away from booleans. Without
            a prefix, the bytes of the state kind ``token_tree_mask`` for one verify slot.

        Raises:
            InvalidArgumentError: it would take more than 1 GiB.
        """
        return self._core.mask(as_count(prefix, "prefix"))

    def bias(self, prefix: int = 0) -> NDArray[np.float32]:
        """The mask that is added to attention scores: 0 where a row sees a column, else -inf.

        Args:
            prefix: as in `mask`.

        Raises:
            InvalidArgumentError: it would take more than 1 GiB.
        """
        return self._core.bias(as_count(prefix, "prefix"))

    def packed_mask(self, prefix: int = 0) -> NDArray[np.uint32]:
        """The mask in bits: column ``j`` is bit ``j % 32`` of word ``j // 32``, lowest bit first.

        On little-endian machines ``.view(numpy.uint8)`` of it is what ``numpy.packbits`` with
        ``bitorder="little"`` makes of each row of `mask`.

        Args:
            prefix: as in `mask`.

        Returns:
            ``[nodes, ceil((prefix + nodes) / 32)]``; bits past the last column are 0.

        Raises:
            InvalidArgumentError: it would take more than 1 GiB.
        """
        return self._core.packed_mask(as_count(prefix, "prefix"))

    def accept(self, tokens: ArrayLike, picks: ArrayLike) -> tuple[NDArray[np.int32], int]:
        """The longest path that greedy decoding takes, and the token after it.

        A row is accepted when its parent is and has picked its token. Of equally long paths that of
        the lowest row counts.

        Args:
            tokens: the token of each row, ``[nodes]``, as `VerifySession.tokens`.
            picks: the model's choice after each row, ``[nodes]``.

        Returns:
            The accepted rows from the root on, for `VerifySession.commit`, and the bonus token:
            the pick of the last of them, to extend the sequence by.

        Raises:
            InvalidArgumentError: not one token and one pick for each node.
        """
        return self._core.accept(as_tokens(tokens), as_tokens(picks, "picks"))

    def __len__(self) -> int:
        return self.nodes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenTree):
            return NotImplemented
        return self.parents.tobytes() == other.parents.tobytes()

    def __hash__(self) -> int:
        return hash(self.parents.tobytes())

    def __repr__(self) -> str:
        return f"<TokenTree of {self.nodes} nodes, {self.leaves} leaves, depth {self.depth}>"
