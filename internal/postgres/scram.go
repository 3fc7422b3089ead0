package postgres

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// SCRAM-SHA-256 as PostgreSQL stores it: SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>.
// https://www.postgresql.org/docs/current/catalog-pg-authid.html
const (
	scramPrefix     = "SCRAM-SHA-256$"
	scramIterations = 4096
	scramSaltBytes  = 16
)

// SCRAMVerifier computes the verifier of a password, which is what the server stores and all that it needs. salt is 16 random
// bytes when nil. Empty passwords and those with control characters are refused. Passwords outside of ASCII are taken byte by byte, not
// normalised (SASLprep), so clients and server agree on them only when the text is in normal form already.
func SCRAMVerifier(password string, salt []byte) (string, error) {
	if err := checkPassword(password); err != nil {
		return "", err
	}
	if salt == nil {
		salt = make([]byte, scramSaltBytes)
		if _, err := rand.Read(salt); err != nil {
			return "", err
		}
	}
	stored, server, err := scramKeys(password, salt, scramIterations)
	if err != nil {
		return "", err
	}
	enc := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("%s%d:%s$%s:%s", scramPrefix, scramIterations, enc(salt), enc(stored), enc(server)), nil
}

// VerifierMatches says whether the verifier was computed from the password. A verifier of another form never matches.
func VerifierMatches(verifier, password string) bool {
	rest, ok := strings.CutPrefix(verifier, scramPrefix)
	if !ok {
		return false
	}
	head, keys, ok1 := strings.Cut(rest, "$")
	iterText, saltText, ok2 := strings.Cut(head, ":")
	storedText, serverText, ok3 := strings.Cut(keys, ":")
	iterations, err := strconv.Atoi(iterText)
	if !ok1 || !ok2 || !ok3 || err != nil || iterations < 1 {
		return false
	}
	salt, err1 := base64.StdEncoding.DecodeString(saltText)
	wantStored, err2 := base64.StdEncoding.DecodeString(storedText)
	wantServer, err3 := base64.StdEncoding.DecodeString(serverText)
	if err := errors.Join(err1, err2, err3); err != nil {
		return false
	}
	stored, server, err := scramKeys(password, salt, iterations)
	return err == nil && hmac.Equal(stored, wantStored) && hmac.Equal(server, wantServer)
}

// IsVerifier says whether text has the form of a SCRAM-SHA-256 verifier.
func IsVerifier(s string) bool {
	rest, ok := strings.CutPrefix(s, scramPrefix)
	return ok && strings.Count(rest, "$") == 1 && strings.Count(rest, ":") == 2
}

func checkPassword(password string) error {
	if password == "" {
		return errors.New("the password is empty: PostgreSQL lets nobody in with an empty password")
	}
	if !utf8.ValidString(password) {
		return errors.New("the password is not UTF-8 text")
	}
	if strings.ContainsFunc(password, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return errors.New("the password holds a control character, for example a line break at its end: remove it")
	}
	return nil
}

func scramKeys(password string, salt []byte, iterations int) (stored, server []byte, err error) {
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return nil, nil, err
	}
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	sum := sha256.Sum256(mac(salted, "Client Key"))
	return sum[:], mac(salted, "Server Key"), nil
}
