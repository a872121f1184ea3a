package gateway

import (
	"fmt"
	"os"

	"remuda/internal/hclconfig"
	"remuda/internal/hclfault"
)

// LoadFile reads an HCL config file over base and returns the result. Its
// error has one line, "file:line:column: …", for each thing that is wrong.
//
//	listen = "0.0.0.0:8080"
//	consul     { address = "127.0.0.1:8500" }
//	controller { addresses = ["http://10.0.0.1:4750", "http://10.0.0.2:4750"] }
//	timeouts   { first_byte = "20m" }
//	limits     { body = "64MiB" }
//	queue      { wait = "2m" }
//	key "team-a" {
//	  sha256 = "…"
//	  weight = 2
//	}
func LoadFile(path string, base Config) (Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return base, fmt.Errorf("read gateway config: %w", err)
	}
	return Parse(path, src, base)
}

// Parse is LoadFile for a file whose content is at hand; filename is for
// messages only.
func Parse(filename string, src []byte, base Config) (Config, error) {
	return hclconfig.Parse(filename, src, base, func(c Config) hclfault.Problems { return c.settingProblems() })
}
