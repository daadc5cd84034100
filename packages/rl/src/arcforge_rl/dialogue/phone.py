"""The phone of tau2's telephone company's customers: its settings, what they lead to, and the faults it begins with.

The rules are those of tau2-bench (Sierra Research, MIT), https://github.com/sierra-research/tau2-bench, as
inspect-evals 0.26.0 has them; `tests/rl/dialogue/test_parity.py` compares both. Its screen is in `screen.py`.
"""

from __future__ import annotations

import copy
from typing import Any

from arcforge_rl.dialogue.records import ToolRefusal
from arcforge_rl.dialogue.telecom import Telecom

APN = {"apn_name": "internet", "reset_at_reboot": False, "mms_apn": "mms",
       "mmsc_url": "http://mms.carrier.com/mms/wapenc", "mms_proxy": None, "mms_port": None}  # fmt: skip
"""Settings of the access point as they are after a reset."""
DEVICE: dict[str, Any] = {
    "sim_card_status": "active", "sim_card_missing": False, "airplane_mode": False,
    "network_signal_strength": "good", "network_technology_connected": "5G", "network_connection_status": "connected",
    "battery_level": 80, "data_enabled": True, "roaming_enabled": False, "network_mode_preference": "4g_5g_preferred",
    "wifi_enabled": False, "wifi_connected": False, "wifi_ssid": None, "wifi_signal_strength": "none",
    "wifi_calling_enabled": False, "wifi_calling_mms_over_wifi": False, "data_saver_mode": False,
    "vpn_enabled_setting": False, "vpn_connected": False, "vpn_details": None,
}  # fmt: skip
"""Settings that a file of phones may leave out."""
SIGNALS = {"2G": "poor", "3G": "fair", "4G": "good", "5G": "excellent"}
"""Signal at the customer's place, by technology."""
ONLY = {"4g_only": "4G", "3g_only": "3G", "2g_only": "2G"}
MODES = ("4g_5g_preferred", *ONLY)
SPEEDS = {"2G": (0.1, 0.4), "3G": (1.0, 5.0), "4G": (10.0, 100.0), "5G": (50.0, 500.0)}
"""Mbps, by technology."""
SHARES = {"poor": 0.2, "fair": 0.5, "good": 0.8, "excellent": 1.0}
"""Share of the speed, by signal."""
GRADES = ((1, "Very Poor"), (5, "Poor"), (25, "Fair"), (100, "Good"))
"""Mbps below which a speed has a name; above all it is excellent."""
VPN = {"server_address": "192.168.1.1", "protocol": "OpenVPN", "server_performance": "excellent"}


class Phone:
    """A phone and its surroundings.

    Args:
        file: content of the benchmark's file of the phone.
        telecom: the company.

    Attributes:
        device: settings by name.
        apn: settings of the access point.
        apps: permissions by app, by name.
    """

    def __init__(self, file: dict[str, Any], telecom: Telecom) -> None:
        given = copy.deepcopy(file["device"])
        self.apn = APN | given.pop("active_apn_settings", {})
        self.apps: dict[str, dict[str, bool]] = {
            name: dict(app["permissions"]) for name, app in given.pop("app_statuses").items()
        }
        self.device = DEVICE | given
        self.vpn = dict(VPN)
        self.telecom = telecom
        self.number: str | None = None
        self.abroad = self.roaming_allowed = self.exceeded = False
        self.line_active = True
        self.request: dict[str, Any] | None = None

    def sync(self) -> None:
        """Lets the phone see what the company did, and the company a payment."""
        if self.number is None:
            return
        line = self.telecom.line_of_phone(self.number)
        self.line_active = line["status"] == "Active"
        self.roaming_allowed = bool(line.get("roaming_enabled"))
        self.exceeded = self.telecom.exceeded(line)
        if self.request is not None and self.request["paid"]:
            self.telecom.set_bill_to_paid(self.request["bill_id"])
            self.request = None
        if self.request is None:
            bills = self.telecom.awaiting_payment(self.telecom.customer_of(self.number))
            if bills:
                self.request = {"bill_id": bills[0]["bill_id"], "amount_due": bills[0]["total_due"], "paid": False}

    # ---- faults and circumstances ------------------------------------------------------------------------------------

    def set_user_info(self, name: str, phone_number: str) -> None:
        self.number = phone_number

    def set_user_location(self, abroad: bool) -> None:
        self.abroad = abroad

    def turn_airplane_mode_on(self) -> None:
        if not self.switch_airplane_mode():
            self.switch_airplane_mode()

    def turn_data_off(self) -> None:
        self.set("data_enabled", False)

    def turn_roaming_on(self) -> None:
        self.set("roaming_enabled", True)

    def turn_roaming_off(self) -> None:
        self.set("roaming_enabled", False)

    def turn_data_saver_mode_on(self) -> None:
        self.device["data_saver_mode"] = True

    def set_network_mode_preference(self, mode: str) -> None:
        self.set("network_mode_preference", checked_mode(mode))

    def unseat_sim_card(self) -> None:
        self.set("sim_card_missing", True)

    def lock_sim_card(self, mode: str) -> None:
        self.set("sim_card_status", f"locked_{mode}")

    def break_apn_settings(self) -> None:
        self.apn["apn_name"] = "broken"
        self.simulate_network_search()

    def break_apn_mms_setting(self) -> None:
        self.apn["mmsc_url"] = None

    def break_vpn(self) -> None:
        self.connect()
        self.vpn["server_performance"] = "poor"

    def set_wifi_calling(self, enabled: bool, mms_over_wifi: bool | None = None) -> None:
        self.device["wifi_calling_enabled"] = enabled
        if mms_over_wifi is not None:
            self.device["wifi_calling_mms_over_wifi"] = mms_over_wifi

    def remove_app_permission(self, app_name: str, permission: str) -> None:
        if permission.lower() in self.apps.get(app_name, {}):
            self.apps[app_name][permission.lower()] = False

    def simulate_network_search(self) -> None:
        """Finds the network that SIM card, preference and surroundings lead to."""
        status, technology, signal = "no_service", "none", "none"
        works = self.sim == "active" and not self.device["airplane_mode"] and self.line_active
        if works and self.apn["apn_name"] != "broken":
            preferred = ONLY.get(self.device["network_mode_preference"], "5G")
            status, technology, signal = "connected", preferred, SIGNALS[preferred]
        self.device |= {
            "network_connection_status": status,
            "network_technology_connected": technology,
            "network_signal_strength": signal,
        }

    # ---- what settings do --------------------------------------------------------------------------------------------

    @property
    def sim(self) -> str:
        """State of the SIM card."""
        return "missing" if self.device["sim_card_missing"] else str(self.device["sim_card_status"])

    def set(self, name: str, value: bool | str) -> None:
        """Changes a setting and searches for a network."""
        self.device[name] = value
        self.simulate_network_search()

    def switch_airplane_mode(self) -> bool:
        """Turns airplane mode on or off; returns whether it is on."""
        was_on = self.device["airplane_mode"]
        if not was_on or self.device["wifi_enabled"]:
            self.device |= {"wifi_connected": False, "wifi_ssid": None, "wifi_signal_strength": "none"}
        if not was_on:
            self.disconnect()
        self.set("airplane_mode", not was_on)
        return not was_on

    def connect(self) -> bool:
        """Connects to the VPN; returns whether it was not connected."""
        if self.device["vpn_connected"]:
            return False
        self.device |= {"vpn_connected": True, "vpn_details": self.vpn}
        return True

    def disconnect(self) -> bool:
        """Leaves the VPN; returns whether it was connected."""
        was = bool(self.device["vpn_connected"])
        self.device |= {"vpn_connected": False, "vpn_details": None}
        return was

    def reboot(self) -> bool:
        """Restarts the phone; returns whether the access point was reset."""
        reset = bool(self.apn["reset_at_reboot"])
        if reset:
            self.apn = dict(APN)
        self.simulate_network_search()
        return reset

    # ---- consequences ------------------------------------------------------------------------------------------------

    def has_data(self) -> bool:
        """Returns whether mobile data works."""
        device = self.device
        if device["airplane_mode"] or device["network_signal_strength"] == "none":
            return False
        if device["network_connection_status"] == "no_service" or not device["data_enabled"] or self.exceeded:
            return False
        return not self.abroad or bool(device["roaming_enabled"] and self.roaming_allowed)

    def speed(self) -> tuple[float | None, str]:
        """Returns Mbps and their name; None without mobile data."""
        if not self.has_data():
            return None, "No Connection"
        details = self.device["vpn_details"]
        slow = self.device["vpn_connected"] and details and details["server_performance"] == "poor"
        factor = (0.1 if slow else 1.0) * (0.2 if self.device["data_saver_mode"] else 1.0)
        low, high = SPEEDS.get(self.device["network_technology_connected"], (0.0, 0.0))
        share = SHARES.get(self.device["network_signal_strength"], 0.0)
        found = round((low + high) / 2.0 * share * factor, 2)
        return found, next((name for limit, name in GRADES if found < limit), "Excellent")

    def sends_mms(self) -> bool:
        """Returns whether the messaging app can send pictures."""
        device, app = self.device, self.apps.get("messaging", {})
        if not self.has_data() or device["network_technology_connected"] == "2G":
            return False
        if device["wifi_calling_enabled"] and device["wifi_calling_mms_over_wifi"]:
            return False
        return self.apn["mmsc_url"] is not None and app.get("storage", False) and app.get("sms", False)

    # ---- assertions --------------------------------------------------------------------------------------------------

    def assert_service_status(self, expected_status: str) -> bool:
        return bool(self.device["network_connection_status"] == expected_status)

    def assert_mobile_data_status(self, expected_status: bool) -> bool:
        return self.has_data() == expected_status

    def assert_internet_speed(self, expected_speed: float, expected_desc: str | None = None) -> bool:
        speed, name = self.speed()
        fits = expected_desc is None or name.lower() == expected_desc.lower()
        return (speed or 0.0) >= expected_speed and fits

    def assert_can_send_mms(self, expected_status: bool) -> bool:
        return self.sends_mms() == expected_status


def checked_mode(mode: str) -> str:
    """Returns a preference of network.

    Raises:
        ToolRefusal: it is none.
    """
    if mode not in MODES:
        raise ToolRefusal(f"{mode!r} is not a valid option. Please use one of: {', '.join(MODES)}")
    return mode
