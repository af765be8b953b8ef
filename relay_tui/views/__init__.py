"""The screens, one module each; `relay_tui.screens.SCREENS` lists them."""
