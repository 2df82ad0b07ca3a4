"""Small sabotages of the code, each with a test that must fail with it: ``python -m tests.sabotage``.

``sabotage.py`` says what a sabotage is, ``listed/`` has them by subject, ``tree.py`` is the copy that is changed, ``trial.py``
runs the tests, ``command.py`` is the program. Where a change of the code moves a sabotaged line, rewrite the sabotage so that
the same thing goes wrong.
"""
