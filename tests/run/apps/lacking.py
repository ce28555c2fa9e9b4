"""An application that needs a module which is not there."""

import a_module_that_is_not_installed  # noqa: F401
