"""How far a model was asked about a dataset's rows: one sentence for every place that judges it (pure).

Digests, counts and grammar show that rows are what was committed and have the right form. Only a model can
say whether ids are its own, of the rows that it is asked about, and for all but greedy rows only with log
probabilities kept at generation (`sampling.logprobs_share`). What calls a dataset trainable says so.
"""

import attrs


@attrs.frozen(slots=True)
class Scored:
    """What re-scoring looked at.

    Args:
        of: accepted rows of the dataset.
        rows: those of them that a server scored.
        held: those of the scored whose kept log probabilities were compared.
        loose: those of the scored whose ids need only be likely: neither greedy nor held.
        temperatures: at which the loose ones were drawn, ascending.
    """

    of: int
    rows: int = 0
    held: int = 0
    loose: int = 0
    temperatures: tuple[float, ...] = ()

    def sentence(self) -> str:
        """Return how many rows were scored and what is therefore not seen."""
        if not self.rows:
            return (
                f"0 of {self.of} rows scored, so not seen: ids changed with every digest made to fit, "
                "another model's ids"
            )
        unseen = []
        if self.loose:
            drawn = ", ".join(f"{temperature:g}" for temperature in self.temperatures)
            unseen.append(
                f"at temperature {drawn}, in the {self.loose} without kept log probabilities, an id "
                "exchanged for a likely one, a model much like the one that is asked"
            )
        if self.rows < self.of:
            unseen.append(f"anything in the ids of the {self.of - self.rows} that were not scored")
        told = f"{self.rows} of {self.of} rows scored, {self.held} of them held to kept log probabilities"
        return "; ".join([f"{told}, so not seen: {unseen[0]}", *unseen[1:]]) if unseen else told

    def as_json(self) -> dict[str, object]:
        """Return it for JSON."""
        return {"rows": self.rows, "of": self.of, "held": self.held, "sentence": self.sentence()}
