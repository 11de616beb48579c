"""From a client's message to a request that can be scheduled, or to the reason why it cannot."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.core.batch import AdapterLease, AdapterStore, ModelFacts, RequestGrammar
from engine.core.bounds import complaint
from engine.core.endings import REJECTED_ASLEEP, failed
from engine.core.mail import Received
from engine.core.request import Ending, EngineRequest, Owner, engine_request
from engine.core.scheduler import Scheduler
from engine.core.structured import GrammarCompiler
from engine.wire.messages import AddRequest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger(__name__)


class Intake:
    """Checks requests and gathers what they need: their adapter, their grammar.

    Args:
        config: Time-outs and limits.
        facts: Of the model.
        scheduler: Knows what fits.
        adapters: None: the engine takes no adapters.
        tokenizer: Builds the model's tokenizer, for grammars.
        on_ready: Called from any thread when a grammar has been compiled or refused.
    """

    def __init__(
        self,
        config: EngineConfig,
        facts: ModelFacts,
        scheduler: Scheduler,
        adapters: AdapterStore | None,
        *,
        tokenizer: Callable[[], "Tokenizer"],
        on_ready: Callable[[], None],
    ) -> None:
        self.accepting = True
        """False: new requests are rejected as asleep."""
        self.grammars = GrammarCompiler(
            tokenizer,
            facts.vocab_size,
            facts.eos_token_ids,
            timeout_s=config.grammar_timeout_s,
            on_ready=on_ready,
        )
        self._facts = facts
        self._scheduler = scheduler
        self._adapters = adapters

    def admit(
        self, mail: Received, message: AddRequest, now_ns: int
    ) -> tuple[EngineRequest, Ending | None]:
        """Return the request, and why it is refused if it is; what it holds is let go then."""
        refusal = self._refusal(message)
        adapter: AdapterLease | None = None
        grammar: RequestGrammar | None = None
        if refusal is None and message.adapter is not None:
            adapter = self._adapters.lease(message.adapter) if self._adapters else None
            if adapter is None:
                text = f"no adapter is loaded under the name {message.adapter!r}"
                refusal = failed("adapter_not_loaded", text)
        if refusal is None and message.grammar is not None:
            grammar = self.grammars.start(message.grammar)
        header = mail.header
        request = engine_request(
            message,
            Owner(mail.client, header.sender, header.sender_epoch),
            header.context,
            self._facts.eos_token_ids,
            now_ns,
            adapter=adapter,
            grammar=grammar,
        )
        refusal = refusal or self._scheduler.refusal(request)
        if refusal is not None and adapter is not None:
            adapter.release()
        return request, refusal

    def close(self) -> None:
        """End the background threads."""
        self.grammars.close()

    def _refusal(self, message: AddRequest) -> Ending | None:
        if not self.accepting:
            return REJECTED_ASLEEP
        try:
            wrong = complaint(message, self._facts.vocab_size)
        except Exception:
            logger.exception("request %s could not be checked", message.request_id)
            return failed("internal_error", "the engine could not check this request")
        return None if wrong is None else failed("invalid_request", wrong)
