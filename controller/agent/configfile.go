package agent

import (
	"fmt"
	"os"

	"remuda/internal/hclconfig"
)

// LoadFile reads an HCL config file over base and returns the result. Its error
// has one line, "file:line:column: …", for each thing that is wrong.
//
//	data_dir         = "/var/lib/remuda"
//	bootstrap_expect = 3
//	join             = ["10.0.0.1:4751", "10.0.0.2:4751", "10.0.0.3:4751"]
//	raft {
//	  bind        = "10.0.0.1:4751"
//	  secret_file = "/etc/remuda/raft.secret"
//	}
//	http { bind = "10.0.0.1:4750" }
//	tls {
//	  ca_file   = "/etc/remuda/ca.pem"
//	  cert_file = "/etc/remuda/server.pem"
//	  key_file  = "/etc/remuda/server-key.pem"
//	}
//	nomad  { address = "https://nomad.example:4646" }
//	consul { address = "127.0.0.1:8500" }
//	reconcile {
//	  drain_timeout = "10m"
//	  min_age       = "5m"
//	}
//	pool "cloud" {
//	  nomad {
//	    address   = "https://nomad.cloud.example:4646"
//	    token     = "…"
//	    node_pool = "gpu"
//	  }
//	  management = "full"
//	  price      = 2
//	  batch      = 1
//	  interval   = "5m"
//	}
func LoadFile(path string, base Config) (Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return base, fmt.Errorf("read the agent config: %w", err)
	}
	return Parse(path, src, base)
}

// Parse is LoadFile for a file whose content is at hand; filename is for messages
// only.
func Parse(filename string, src []byte, base Config) (Config, error) {
	return hclconfig.Parse(filename, src, base, Config.problems)
}
