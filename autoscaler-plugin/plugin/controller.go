package plugin

import (
	"strings"

	"remuda/controller/api"
)

// Keys of how to reach others, in the config block of every plugin.
const (
	KeyController = "controller" // URLs of controllers, separated by commas; "none": work without
	KeyToken      = "token"      // a token with the role autoscaler
	KeyCACert     = "ca_cert"
	KeyClientCert = "client_cert"
	KeyClientKey  = "client_key"
)

// NoController as the address says that there is none.
const NoController = "none"

// Controller reads how to reach the controller: nil where the plugin works without one.
// What is left out comes from the environment, as REMUDA_ADDR.
func (r *Settings) Controller() *api.Config {
	var c api.Config
	address := r.Text(KeyController, "")
	c.Token = r.Text(KeyToken, "")
	c.CACert, c.ClientCert, c.ClientKey = r.Text(KeyCACert, ""), r.Text(KeyClientCert, ""), r.Text(KeyClientKey, "")
	if address == NoController {
		return nil
	}
	if address != "" {
		c.Addresses = strings.Split(address, ",")
	}
	return &c
}
