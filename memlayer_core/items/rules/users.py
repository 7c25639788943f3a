"""Decides which folders belong to a user: those of a namespace that the application declared, such as `("memories", "{user_id}")`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memlayer_core.errors import InvalidItemError
from memlayer_core.items.rules.items import folder_of
from memlayer_core.scope import Folder

__all__ = ["USER", "check_namespace", "folder_of_user", "is_within"]

USER = "{user_id}"
"""The label in a namespace that stands for the user's id."""


def check_namespace(tenant_id: str, namespace: object) -> tuple[str, ...]:
    """Return the labels of a user's namespace.

    Raises:
        InvalidItemError: They are no labels, or not exactly one of them is `"{user_id}"`.
    """
    labels = folder_of(tenant_id, namespace).labels
    if sum(label == USER for label in labels) != 1 or any(
        USER in label and label != USER for label in labels
    ):
        raise InvalidItemError(
            f"a user's namespace has the label {USER!r} once, got {labels!r:.100}",
            hint=f'For example `("memories", "{USER}")`.',
        )
    return labels


def folder_of_user(tenant_id: str, namespace: Sequence[str], user_id: str) -> Folder:
    """Return the folder of a user in a namespace."""
    return Folder(tenant_id, tuple(user_id if label == USER else label for label in namespace))


def is_within(labels: Sequence[str], folders: Iterable[Folder]) -> bool:
    """Tell whether a folder of these labels is one of some folders, or inside of one."""
    return any(tuple(labels[: len(one.labels)]) == one.labels for one in folders)
