"""The phone of a customer of tau2's telephone company, as it is used and as its screen shows it.

The texts are our own, with the facts of tau2-bench's.
"""

from __future__ import annotations

from typing import Any

from arcforge_rl.dialogue.phone import APN, Phone
from arcforge_rl.dialogue.records import ToolRefusal


class Screen:
    """The tools of the customer; each method is one."""

    def __init__(self, phone: Phone) -> None:
        self.phone = phone

    # ---- reading -----------------------------------------------------------------------------------------------------

    def check_status_bar(self) -> str:
        device, technology = self.phone.device, self.phone.device["network_technology_connected"]
        shown = ["airplane mode"] if device["airplane_mode"] else [f"signal: {device['network_signal_strength']}"]
        if not device["airplane_mode"]:
            shown += [technology] if technology != "none" else []
            data = device["data_enabled"] and technology != "none"
            shown += ["data on" if data else "data off", *["data saver"] * bool(data and device["data_saver_mode"])]
        shown += ["Wi-Fi"] * bool(device["wifi_connected"]) + ["VPN"] * bool(device["vpn_connected"])
        shown.append(f"battery {device['battery_level']}%")
        return f"Status bar: {', '.join(shown)}"

    def check_network_status(self) -> str:
        device = self.phone.device
        lines = {
            "Airplane mode": _on(device["airplane_mode"]),
            "SIM card": self.phone.sim,
            "Cellular connection": device["network_connection_status"],
            "Cellular signal": device["network_signal_strength"],
            "Network type": device["network_technology_connected"],
            "Mobile data": _on(device["data_enabled"]),
            "Data roaming": _on(device["roaming_enabled"]),
            "Wi-Fi radio": _on(device["wifi_enabled"]),
            "Wi-Fi connected": device["wifi_ssid"] or ("yes" if device["wifi_connected"] else "no"),
        }
        return "\n".join(f"{name}: {value}" for name, value in lines.items())

    def check_network_mode_preference(self) -> str:
        return f"Network mode preference: {self.phone.device['network_mode_preference']}"

    def run_speed_test(self) -> str:
        speed, name = self.phone.speed()
        return f"Speed test failed: {name}." if speed is None else f"Speed test: {speed:.2f} Mbps ({name})."

    def check_sim_status(self) -> str:
        return f"The SIM card is {self.phone.sim.replace('_', ' by ')}."

    def check_data_restriction_status(self) -> str:
        return f"Data Saver mode is {_on(self.phone.device['data_saver_mode'])}."

    def check_apn_settings(self) -> str:
        return f"APN name: {self.phone.apn['apn_name']}\nMMSC URL: {self.phone.apn['mmsc_url'] or 'not set'}"

    def check_wifi_status(self) -> str:
        device = self.phone.device
        where = f"connected to {device['wifi_ssid']}" if device["wifi_connected"] else "not connected to a network"
        return f"Wi-Fi is ON and {where}." if device["wifi_enabled"] else "Wi-Fi is OFF."

    def check_wifi_calling_status(self) -> str:
        return f"Wi-Fi Calling is {_on(self.phone.device['wifi_calling_enabled'])}."

    def check_vpn_status(self) -> str:
        device = self.phone.device
        if not device["vpn_connected"]:
            return "The VPN is not connected."
        return f"The VPN is connected; its server's performance is {device['vpn_details']['server_performance']}."

    def check_installed_apps(self) -> str:
        return f"Installed apps: {', '.join(self.phone.apps)}"

    def check_app_status(self, app_name: str) -> str:
        return self.check_app_permissions(app_name)

    def check_app_permissions(self, app_name: str) -> str:
        granted = [name for name, has in self._app(app_name).items() if has]
        return f"The app {app_name} has these permissions: {', '.join(granted) or 'none'}."

    def can_send_mms(self) -> str:
        return f"The messaging app {'can' if self.phone.sends_mms() else 'cannot'} send MMS messages."

    def check_payment_request(self) -> str:
        asked = self.phone.request
        return (
            f"There is a payment request for bill {asked['bill_id']} of {asked['amount_due']} USD."
            if asked
            else "There is no payment request."
        )

    # ---- doing -------------------------------------------------------------------------------------------------------

    def set_network_mode_preference(self, mode: str) -> str:
        self.phone.set_network_mode_preference(mode)
        return self._done(f"Network mode preference: {mode}.")

    def toggle_airplane_mode(self) -> str:
        return self._done(f"Airplane mode is {_on(self.phone.switch_airplane_mode())}.")

    def reseat_sim_card(self) -> str:
        self.phone.set("sim_card_missing", False)
        return self._done("The SIM card was taken out and put in.")

    def toggle_data(self) -> str:
        return self._toggled("data_enabled", "Mobile data")

    def toggle_roaming(self) -> str:
        return self._toggled("roaming_enabled", "Data roaming")

    def toggle_data_saver_mode(self) -> str:
        self.phone.device["data_saver_mode"] = not self.phone.device["data_saver_mode"]
        return self._done(f"Data Saver mode is {_on(self.phone.device['data_saver_mode'])}.")

    def set_apn_settings(self, apn_settings: dict[str, Any]) -> str:
        strange = [name for name in apn_settings if name not in APN]
        if strange or apn_settings.get("apn_name", "internet") not in ("internet", "broken"):
            raise ToolRefusal(f"APN settings have {', '.join(APN)}; apn_name is internet or broken")
        self.phone.apn = APN | apn_settings
        self.phone.simulate_network_search()
        return self._done(f"APN name: {self.phone.apn['apn_name']}.")

    def reset_apn_settings(self) -> str:
        self.phone.apn["reset_at_reboot"] = True
        self.phone.simulate_network_search()
        return self._done("The APN settings will be reset at the next reboot.")

    def toggle_wifi(self) -> str:
        device = self.phone.device
        if device["airplane_mode"]:
            return self._done("Wi-Fi cannot be changed in airplane mode.")
        device["wifi_enabled"] = not device["wifi_enabled"]
        if not device["wifi_enabled"]:
            device |= {"wifi_connected": False, "wifi_ssid": None, "wifi_signal_strength": "none"}
        return self._done(f"Wi-Fi is {_on(device['wifi_enabled'])}.")

    def toggle_wifi_calling(self) -> str:
        self.phone.device["wifi_calling_enabled"] = not self.phone.device["wifi_calling_enabled"]
        return self._done(f"Wi-Fi Calling is {_on(self.phone.device['wifi_calling_enabled'])}.")

    def connect_vpn(self) -> str:
        return self._done("The VPN is connected." if self.phone.connect() else "The VPN was connected already.")

    def disconnect_vpn(self) -> str:
        return self._done("The VPN is disconnected." if self.phone.disconnect() else "There was no VPN connection.")

    def grant_app_permission(self, app_name: str, permission: str) -> str:
        permissions = self._app(app_name)
        if permission.lower() not in permissions:
            raise ToolRefusal(f"{app_name} has no permission {permission!r}, only {', '.join(permissions)}")
        permissions[permission.lower()] = True
        return self._done(f"{app_name} has the permission {permission.lower()}.")

    def reboot_device(self) -> str:
        return self._done(f"{'APN settings were reset. ' if self.phone.reboot() else ''}The phone has restarted.")

    def make_payment(self) -> str:
        asked = self.phone.request
        if asked is None:
            return "There is no payment request."
        asked["paid"] = True
        return f"{asked['amount_due']} USD were paid for bill {asked['bill_id']}."

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _app(self, app_name: str) -> dict[str, bool]:
        if app_name not in self.phone.apps:
            raise ToolRefusal(f"There is no app {app_name!r} on this phone, only {', '.join(self.phone.apps)}")
        return self.phone.apps[app_name]

    def _toggled(self, name: str, words: str) -> str:
        self.phone.set(name, not self.phone.device[name])
        return self._done(f"{words} is {_on(self.phone.device[name])}.")

    def _done(self, text: str) -> str:
        return f"{text}\n{self.check_status_bar()}"


def _on(value: bool) -> str:
    return "ON" if value else "OFF"
