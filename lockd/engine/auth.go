package engine

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"remuda/internal/replica"
)

// Where a shim finds who may change its engine's state.
const (
	// EnvControllerKey is the public key of the controller that registered the job, in base64
	// (URL, without padding): see replica.Secret. The controller sets it.
	EnvControllerKey = "REMUDA_CONTROLLER_KEY"
	// EnvGatewayKey is the public key of the gateways, in base64 (URL, without padding), with which the
	// shim makes the engine's API key: see replica.EngineKey. The controller sets it.
	EnvGatewayKey = "REMUDA_GATEWAY_KEY"
	// EnvShimSecret is a secret that clients of the shim have to know. It is not passed to the
	// engine.
	EnvShimSecret = "REMUDA_SHIM_SECRET"
	// secretFile has the secret, in the task's directory of secrets, if EnvShimSecret is not set.
	secretFile = "remuda-shim"
)

// TaskSecret returns the secret and the controller's key that this process's environment has.
// Both are empty if there are none.
func TaskSecret() (secret string, key ed25519.PublicKey, err error) {
	if secret, err = taskSecret(); err != nil {
		return "", nil, err
	}
	raw := os.Getenv(EnvControllerKey)
	if raw == "" {
		return secret, nil, nil
	}
	key, err = base64.RawURLEncoding.DecodeString(raw)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return "", nil, fmt.Errorf("$%s is %q: must be an Ed25519 public key of %d bytes in base64", EnvControllerKey, raw, ed25519.PublicKeySize)
	}
	return secret, key, nil
}

// TaskGatewayKey returns the gateways' key that this process's environment has, nil if there is none.
func TaskGatewayKey() (*ecdh.PublicKey, error) {
	raw := os.Getenv(EnvGatewayKey)
	if raw == "" {
		return nil, nil
	}
	key, err := replica.ParseGatewayPublicKey(raw)
	if err != nil {
		return nil, fmt.Errorf("$%s is %q: must be an X25519 public key in base64: %w", EnvGatewayKey, raw, err)
	}
	return key, nil
}

func taskSecret() (string, error) {
	if secret := os.Getenv(EnvShimSecret); secret != "" {
		return secret, nil
	}
	dir := os.Getenv("NOMAD_SECRETS_DIR")
	if dir == "" {
		return "", nil
	}
	path := filepath.Join(dir, secretFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the shim's secret: %w", err)
	}
	secret := strings.TrimSpace(string(raw))
	if secret == "" {
		return "", fmt.Errorf("read the shim's secret: %s is empty: write the secret into it, or remove it", path)
	}
	return secret, nil
}

// guarded serves a route that changes the engine's state, or shows its log, to clients that prove who they are. A
// shim without a secret and without a controller's key serves the clients of its own machine, but
// no page in a browser there: a page sends the origin or, where its name was made to point here,
// the host that it came from.
func (s *Shim) guarded(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		code, why := s.admit(r)
		if why == "" {
			next(w, r)
			return
		}
		s.logger.Warn("rejected a request", "method", r.Method, "path", r.URL.Path, "client", r.RemoteAddr, "reason", why)
		if code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		writeJSON(w, code, map[string]string{"error": why, "state": string(s.State())})
	}
}

// admit returns why a request is rejected, and the status; empty if it is not.
func (s *Shim) admit(r *http.Request) (code int, why string) {
	if s.cfg.Secret != "" || s.cfg.ControllerKey != nil {
		bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		switch {
		case !ok:
			return http.StatusUnauthorized, "missing secret: send \"Authorization: Bearer SECRET\" with the shim's secret"
		case s.cfg.Secret != "" && subtle.ConstantTimeCompare([]byte(bearer), []byte(s.cfg.Secret)) == 1:
		case s.cfg.ControllerKey != nil && replica.IsSecret(s.cfg.ControllerKey, s.cfg.Name.String(), bearer):
		default:
			return http.StatusUnauthorized, "wrong secret: it is not the shim's, nor that of the controller which registered the job"
		}
		return 0, ""
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	switch peer, _, _ := net.SplitHostPort(r.RemoteAddr); {
	case !isLoopback(peer):
		return http.StatusForbidden, fmt.Sprintf("client %s does not use the loopback address, and this shim has no secret: put one into %s in the task's directory of secrets or into $%s, and restart the task", peer, secretFile, EnvShimSecret)
	case r.Header.Get("Origin") != "":
		return http.StatusForbidden, fmt.Sprintf("the request comes from the web page %q: this shim has no secret, and obeys no pages", r.Header.Get("Origin"))
	case host != "localhost" && !isLoopback(host):
		return http.StatusForbidden, fmt.Sprintf("host is %q: must be the loopback address, because this shim has no secret", r.Host)
	}
	return 0, ""
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
