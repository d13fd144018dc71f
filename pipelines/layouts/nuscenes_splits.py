"""The scenes of nuScenes that validate, as the authors' development kit lists them (``utils/splits.py``)."""

from __future__ import annotations

from pathlib import Path

_VAL = """
0003 0012 0013 0014 0015 0016 0017 0018 0035 0036 0038 0039 0092 0093 0094 0095 0096 0097 0098 0099
0100 0101 0102 0103 0104 0105 0106 0107 0108 0109 0110 0221 0268 0269 0270 0271 0272 0273 0274 0275
0276 0277 0278 0329 0330 0331 0332 0344 0345 0346 0519 0520 0521 0522 0523 0524 0552 0553 0554 0555
0556 0557 0558 0559 0560 0561 0562 0563 0564 0565 0625 0626 0627 0629 0630 0632 0633 0634 0635 0636
0637 0638 0770 0771 0775 0777 0778 0780 0781 0782 0783 0784 0794 0795 0796 0797 0798 0799 0800 0802
0904 0905 0906 0907 0908 0909 0910 0911 0912 0913 0914 0915 0916 0917 0919 0920 0921 0922 0923 0924
0925 0926 0927 0928 0929 0930 0931 0962 0963 0966 0967 0968 0969 0971 0972 1059 1060 1061 1062 1063
1064 1065 1066 1067 1068 1069 1070 1071 1072 1073
"""
VAL = frozenset(f"scene-{number}" for number in _VAL.split())
"""150 of the 850 scenes of v1.0-trainval."""

MINI_VAL = frozenset({"scene-0103", "scene-0916"})
"""Two of the ten scenes of v1.0-mini."""


def split_of(version: Path, scene: str) -> str:
    """The split of a scene in a folder of tables: v1.0-test holds the benchmark's, without labels."""
    if version.name == "v1.0-test":
        return "test"
    return "val" if scene in (MINI_VAL if version.name == "v1.0-mini" else VAL) else "train"
