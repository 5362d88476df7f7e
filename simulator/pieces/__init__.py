"""Small pieces that programs are composed of; none of them awaits."""
