"""Steps of targets that keep their running requests on the device."""
