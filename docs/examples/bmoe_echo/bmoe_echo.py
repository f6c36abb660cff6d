"""A draft source as small as can be: it expects the last token to come again."""

from attrs import define, field

from bmoe_core import hookimpl


@define(eq=False)
class EchoSource:
    """Drafts the last token again, where it has just come twice."""

    times: int = field(default=2, metadata={"help": "how often it is drafted"})

    @hookimpl
    def draft(self, tokens, n_max):
        """Decline unless the last two tokens are equal."""
        if len(tokens) < 2 or tokens[-1] != tokens[-2]:
            return None
        return [int(tokens[-1])] * min(self.times, n_max)
