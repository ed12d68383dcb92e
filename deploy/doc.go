// Package deploy holds what Leeway is deployed with beside docker-compose.yml:
// systemd units. Its tests hold all of it against the code.
package deploy
