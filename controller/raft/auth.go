package raft

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
)

// With a secret, both sides of a connection prove that they know it before anything
// else is sent:
//
//	client: authMagic nonceC(32 bytes)
//	server: nonceS(32 bytes)
//	client: HMAC-SHA256(secret, "client" nonceC nonceS)
//	server: HMAC-SHA256(secret, "server" nonceC nonceS)
//
// The server closes the connection at the first deviation. The client proves first, so
// that a stranger gets nothing from a server to guess the secret with. The rest of the
// connection is neither encrypted nor authenticated: that takes TLS.

// authMagic begins the handshake. A new version of the handshake changes it.
const authMagic = "remuda-raft-auth-1\n"

// MinSecret is the length of the shortest Config.Secret, in bytes.
const MinSecret = 16

const nonceSize = 32

func proof(secret, role string, nonceC, nonceS []byte) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(role))
	mac.Write(nonceC)
	mac.Write(nonceS)
	return mac.Sum(nil)
}

func nonce() []byte {
	n := make([]byte, nonceSize)
	_, _ = rand.Read(n) // It never fails.
	return n
}

// verify reads the proof of the other side.
func verify(conn io.Reader, want []byte) error {
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if !hmac.Equal(got, want) {
		return errors.New("wrong secret")
	}
	return nil
}

// authClient is the handshake of the side that has dialed.
func authClient(conn io.ReadWriter, secret string) error {
	nonceC, nonceS := nonce(), make([]byte, nonceSize)
	_, err := conn.Write(append([]byte(authMagic), nonceC...))
	if err == nil {
		_, err = io.ReadFull(conn, nonceS)
	}
	if err == nil {
		_, err = conn.Write(proof(secret, "client", nonceC, nonceS))
	}
	if err == nil {
		err = verify(conn, proof(secret, "server", nonceC, nonceS))
	}
	if err != nil {
		return fmt.Errorf("authentication failed: is raft.secret the same on both servers? %w", err)
	}
	return nil
}

// authServer is the handshake of the side that has accepted.
func authServer(conn io.ReadWriter, secret string) error {
	hello := make([]byte, len(authMagic)+nonceSize)
	_, err := io.ReadFull(conn, hello)
	magic, nonceC, nonceS := hello[:len(authMagic)], hello[len(authMagic):], nonce()
	if err == nil && string(magic) != authMagic {
		err = errors.New("the connection does not begin with the handshake of raft.secret")
	}
	if err == nil {
		_, err = conn.Write(nonceS)
	}
	if err == nil {
		err = verify(conn, proof(secret, "client", nonceC, nonceS))
	}
	if err == nil {
		_, err = conn.Write(proof(secret, "server", nonceC, nonceS))
	}
	if err != nil {
		return fmt.Errorf("authentication failed: %w", err)
	}
	return nil
}
