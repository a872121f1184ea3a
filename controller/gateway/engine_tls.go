package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"remuda/internal/replica"
)

// EngineTLS is for the way to the engines: TLS 1.3.
type EngineTLS struct {
	// CACert is a PEM file with the CA of the engines' certificates. Empty means plain HTTP to engines. With
	// it, an engine whose shim serves no TLS gets no requests. The file is read at the start.
	CACert string `hcl:"ca_cert"`
	// ServerName is the DNS name that the certificate of every engine must bear.
	ServerName string `hcl:"server_name"`
}

// config returns what connections to engines need, nil for plain HTTP.
func (t EngineTLS) config() (*tls.Config, error) {
	if t.CACert == "" {
		return nil, nil //nolint:nilnil // there is no TLS
	}
	raw, err := os.ReadFile(t.CACert)
	if err != nil {
		return nil, fmt.Errorf("engine_tls.ca_cert: %w", err)
	}
	cas := x509.NewCertPool()
	if !cas.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("engine_tls.ca_cert is %s: must have a certificate in PEM", t.CACert)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: cas, ServerName: t.ServerName}, nil
}

// secured has engines reached at their TLS ports, and refuses those that have none.
func secured(list []replica.Engine) (use []replica.Engine, refused []refusal) {
	use = make([]replica.Engine, 0, len(list))
	for _, e := range list {
		if e.TLSPort == 0 {
			refused = append(refused, refusal{e, "its shim serves no TLS, and engine_tls is set: give the shim -tls-listen"})
			continue
		}
		e.Port = e.TLSPort
		use = append(use, e)
	}
	return use, refused
}
