"""The screens, one module each; `relay_tui.app.SCREENS` lists them."""
