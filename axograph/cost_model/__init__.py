"""What a plan costs on a machine, in seconds. See README.md here."""

from axograph.cost_model.bandwidth import BandwidthModel
from axograph.cost_model.machine import Machine
from axograph.cost_model.protocol import Collective, CollectiveKind, Compute, CostModel
from axograph.cost_model.ring import RingModel

__all__ = ["BandwidthModel", "Collective", "CollectiveKind", "Compute", "CostModel", "Machine", "RingModel"]
