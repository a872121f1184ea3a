package plugin

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"remuda/controller/api"
	"remuda/internal/version"
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

// Controller reads how to reach the controller (URLs, separated by commas) and a token with the role
// autoscaler. It is nil where the plugin works without a controller.
// What is left out comes from the environment, as REMUDA_ADDR.
func (r *Settings) Controller() *api.Config {
	c := api.Config{UserAgent: userAgent}
	address := r.Text("controller", "")
	c.Token = r.Text("token", "")
	c.CACert, c.ClientCert, c.ClientKey = r.Text("ca_cert", ""), r.Text("client_cert", ""), r.Text("client_key", "")
	if address == none {
		return nil
	}
	if address != "" {
		c.Addresses = strings.Split(address, ",")
	}
	return &c
}
