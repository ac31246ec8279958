"""What can keep the embedded stack from starting.

StackError                  500  a part did not start
├── DataDirectoryLocked     409  another supervisor runs on it
├── DataDirectoryUnusable   409  not ours, from a newer version, or its disk is full
├── MachineUnfit            409  something the platform needs is missing here
└── PortTaken               409  a port that was asked for explicitly
"""

from typing import ClassVar

from journeyman.platform.kit.errors import JourneymanError


class StackError(JourneymanError):
    code = "stack_failed"


class DataDirectoryLocked(StackError):
    status: ClassVar[int] = 409
    code = "data_directory_locked"


class DataDirectoryUnusable(StackError):
    status: ClassVar[int] = 409
    code = "data_directory_unusable"


class MachineUnfit(StackError):
    status: ClassVar[int] = 409
    code = "machine_unfit"


class PortTaken(StackError):
    status: ClassVar[int] = 409
    code = "port_taken"
