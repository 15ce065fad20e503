"""
What every store of records must do: subclass `AdmissionStoreContract`, and give a fixture `under_test` (`stores.py`).

    class TestMyStore(AdmissionStoreContract):
        @pytest.fixture
        def under_test(self):
            with my_store_under_test() as under_test:
                yield under_test

Each test stands for a sentence of the port's docstrings in `admission/store.py`. By subject, in `admission/`:

    claims        who gets a claim                  writing_back  what is written back after a wipe
    fences        what tells two claims apart       epochs        a store that is new or was away
    settlement    the outcome of a claim            continuing    the right to send what follows
    renewal       a claim that goes on              records       how a record is kept
    loss          an owner that was seen to die   erasing       a record without its content
"""

import pytest

from tests.conformance.admission.claims import Claims
from tests.conformance.admission.continuing import WhatFollows
from tests.conformance.admission.epochs import Epochs
from tests.conformance.admission.erasing import Erasing
from tests.conformance.admission.fences import Fences
from tests.conformance.admission.loss import Loss
from tests.conformance.admission.records import Records
from tests.conformance.admission.renewal import Renewing
from tests.conformance.admission.settlement import Settlement
from tests.conformance.admission.writing_back import WritingBack


class AdmissionStoreContract(
    Claims, Fences, Settlement, Renewing, Loss, WritingBack, Epochs, WhatFollows, Records, Erasing
):
    """The whole contract: a store that passes it can hold the records of every worker."""

    @pytest.fixture
    def store(self, under_test):
        return under_test.store
