package plugin

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"remuda/controller/api"
	"remuda/internal/version"
)

// Keys of how to reach others, in the config block of every plugin.
const (
	KeyController = "controller" // URLs of controllers, separated by commas; "none": work without
	KeyToken      = "token"      // a token with the role autoscaler
	KeyCACert     = "ca_cert"
	KeyClientCert = "client_cert"
	KeyClientKey  = "client_key"
)

// userAgent tells the controller which agent a plugin belongs to.
var userAgent = fmt.Sprintf("%s/%s (%s)", api.AutoscalerAgent, version.String(), agentName())

// agentName is the host, with the allocation of nomad-autoscaler or its process, which is the parent of
// its plugins.
func agentName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if alloc := os.Getenv("NOMAD_SHORT_ALLOC_ID"); alloc != "" {
		return host + "/" + alloc
	}
	return host + "/" + strconv.Itoa(os.Getppid())
}

// NoController as the address says that there is none.
const NoController = "none"

// Controller reads how to reach the controller: nil where the plugin works without one.
// What is left out comes from the environment, as REMUDA_ADDR.
func (r *Settings) Controller() *api.Config {
	c := api.Config{UserAgent: userAgent}
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
